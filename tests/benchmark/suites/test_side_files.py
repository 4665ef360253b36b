"""What commands write beside a suite."""

import errno
import fcntl
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from benchmark.suites.side_files import SideFile
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


MINE = """\
# Made by hand.

1/A/a: # the first
  options: {method.lr: 0.1} # as in the paper
# why this one is low
1/A/b:
  options: {method.lr: 0.2}

# the end
"""


def test_an_entry_that_is_added_leaves_comments_and_other_entries_as_they_are_written(tmp_path):
    file = SideFile(tmp_path, "tuned", "paper")
    file.path("quick").parent.mkdir()
    file.path("quick").write_text(MINE)
    file.add("quick", {"1/A/c": {"options": {"method.lr": 0.3}}, "1/A/b": {"options": {"method.lr": 0.4}}})
    written = file.path("quick").read_text()
    head = MINE.partition("1/A/b:\n")[0]
    assert written.startswith(head) and "# the end\n" in written and "0.2" not in written
    lr = {name: entry["options"]["method.lr"] for name, entry in file.own("quick").items()}
    assert lr == {"1/A/a": 0.1, "1/A/b": 0.4, "1/A/c": 0.3}


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
