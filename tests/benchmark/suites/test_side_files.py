"""What commands write beside a suite: own entries on top of those of the suite that it extends."""

import errno
import fcntl
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import yaml

from benchmark.suites import side_files
from datamodules.common.errors import ConfigError

ENTRIES = {
    side_files.tuned: {"options": {"method.lr": 0.1}},
    side_files.admitted: {"admitted": False},
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_suite_knows_what_the_extended_one_knows_and_writes_its_own_alone(tmp_path, kind):
    base = kind(tmp_path / "base", "paper", None)
    mine = kind(tmp_path / "mine", "paper-mine", base)
    first, second = ENTRIES[kind], ENTRIES[kind] | {"note": "later"}
    assert mine.own("quick") == mine.entries("quick") == {}
    base.add("quick", {"1/A/a": first, "1/A/b": first})
    mine.add("quick", {"1/A/c": second})
    mine.add("quick", {"1/A/b": second})
    assert mine.entries("quick") == {"1/A/a": first, "1/A/b": second, "1/A/c": second}
    assert yaml.safe_load(mine.path("quick").read_text()) == mine.own("quick") == {"1/A/b": second, "1/A/c": second}
    assert base.entries("quick") == {"1/A/a": first, "1/A/b": first} and mine.entries("paper") == {}
    assert mine.path("quick") == tmp_path / "mine" / kind.__name__ / "paper-mine-quick.yaml"
    assert mine.path("quick").read_text().startswith("# Made by `python -m benchmark ")


def test_entries_that_are_added_at_once_are_all_there(tmp_path, monkeypatch):
    """Also where the file system locks nothing; and nothing is left beside the file."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file, start = side_files.tuned(tmp_path, "paper", None), Barrier(4)

    def add(writer):
        start.wait()
        for number in range(5):
            file.add("quick", {f"1/A/{writer}-{number}": {"options": {}}})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert len(file.own("quick")) == 20
    assert [*file.folder.iterdir()] == [file.path("quick")]


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
    file = side_files.tuned(tmp_path, "paper", None)
    file.path("quick").parent.mkdir()
    file.path("quick").write_text(MINE)
    file.add("quick", {"1/A/c": {"options": {"method.lr": 0.3}}, "1/A/b": {"options": {"method.lr": 0.4}}})
    written = file.path("quick").read_text()
    head = MINE.partition("1/A/b:\n")[0]
    assert written.startswith(head) and "# the end\n" in written and "0.2" not in written
    lr = {name: entry["options"]["method.lr"] for name, entry in file.own("quick").items()}
    assert lr == {"1/A/a": 0.1, "1/A/b": 0.4, "1/A/c": 0.3}


@pytest.mark.parametrize(
    ("kind", "entry", "message"),
    [
        (side_files.tuned, "{options: 3}", "there are no `options`; `tune` writes them"),
        (side_files.tuned, "0.3", "there are no `options`"),
        (side_files.admitted, "{admitted: perhaps}", "`admitted` is neither true nor false; `admit` writes it"),
    ],
)
def test_an_entry_that_is_not_complete_is_one_error(tmp_path, kind, entry, message):
    base = kind(tmp_path, "paper", None)
    base.path("quick").parent.mkdir()
    base.path("quick").write_text(f"1/A/a: {entry}\n")
    for file in (base, kind(tmp_path, "mine", base)):
        with pytest.raises(ConfigError, match=f"paper-quick.yaml, 1/A/a: {message}"):
            file.entries("quick")


def test_nothing_to_add_leaves_no_file(tmp_path):
    file = side_files.tuned(tmp_path, "mine", None)
    file.add("quick", {})
    assert not file.path("quick").exists() and file.own("quick") == {}
