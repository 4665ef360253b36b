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


@pytest.mark.parametrize(
    "file", sorted(SUITES.glob("tuned/*.yaml")) + sorted(SUITES.glob("admitted/*.yaml")), ids=lambda file: file.stem
)
def test_adding_an_entry_again_changes_no_byte_of_a_committed_file(tmp_path, file):
    paper, _, scale = file.stem.rpartition("-")
    copy = SideFile(tmp_path, file.parent.name, paper)
    copy.path(scale).parent.mkdir()
    copy.path(scale).write_bytes(file.read_bytes())
    copy.add(scale, dict([copy.own(scale).popitem()]))
    assert copy.path(scale).read_bytes() == file.read_bytes()


def test_nothing_is_written_where_there_is_nothing_to_add(tmp_path):
    file = SideFile(tmp_path, "tuned", "paper")
    file.add("quick", {})
    assert file.own("quick") == {} and not file.path("quick").exists()


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
