"""What commands write beside a suite."""

import errno
import fcntl
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from benchmark.suites.side_files import SideFile
from benchmark.suites.suite import SUITES
from datamodules.common.errors import ConfigError


def test_entries_that_are_added_at_once_are_all_there(tmp_path, monkeypatch):
    """Also where the file system locks nothing; and nothing is left beside the file."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file, start = SideFile(tmp_path, "tuned", "paper"), Barrier(4)

    def add(writer):
        start.wait()
        for number in range(5):
            file.add("quick", {f"1/A/{writer}-{number}": {"options": {}}})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert len(file.own("quick")) == 20
    assert [*(tmp_path / "tuned").iterdir()] == [file.path("quick")]


@pytest.mark.parametrize(("kind", "paper"), [("tuned", "news-own"), ("admitted", "news")])
def test_adding_an_entry_again_changes_no_byte_of_a_committed_file(tmp_path, kind, paper):
    committed, copy = SideFile(SUITES, kind, paper).path("board"), SideFile(tmp_path, kind, paper)
    copy.path("board").parent.mkdir()
    copy.path("board").write_bytes(committed.read_bytes())
    copy.add("board", dict([copy.own("board").popitem()]))
    assert copy.path("board").read_bytes() == committed.read_bytes()


@pytest.mark.parametrize(
    ("kind", "entry", "command"),
    [("tuned", "{options: 3}", "tune"), ("tuned", "0.3", "tune"), ("admitted", "{admitted: perhaps}", "admit")],
)
def test_an_entry_that_is_not_complete_is_one_error(tmp_path, kind, entry, command):
    file = SideFile(tmp_path, kind, "paper")
    file.path("quick").parent.mkdir()
    file.path("quick").write_text(f"1/A/a: {entry}\n")
    with pytest.raises(ConfigError, match=rf"paper-quick.yaml, 1/A/a: .*`{command}`"):
        file.own("quick")
