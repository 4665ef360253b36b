"""Files appear whole or not at all; errors of the disk name the file; what killed writers leave is swept."""

import errno
import os
import threading

import pytest

from datamodules.common.errors import DataError
from datamodules.common.files import made_once, named, write_atomic


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "table.md"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        write_atomic(path, "new")
    assert error.value.filename == str(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_error_that_names_a_file_keeps_it(tmp_path):
    with pytest.raises(FileNotFoundError) as error, named(tmp_path / "outer"), open(tmp_path / "inner"):
        pass
    assert error.value.filename == str(tmp_path / "inner")


def test_what_killed_writers_left_is_swept_after_an_hour(tmp_path):
    """Files of others, those of writers that may be alive, and whatever a user calls similarly stay."""
    left = [tmp_path / name for name in (".a[1].json.4711.tmp", ".a[1].json.4712", ".a[1].json.4712-0a1b.tmp")]
    kept = [tmp_path / name for name in (".a[1].json.bak", ".a1.json.4711.tmp", ".b.json.4711.tmp")]
    young = tmp_path / ".a[1].json.4713.tmp"
    for file in (*left, *kept, young):
        file.write_text("x")
        os.utime(file, (0, 0) if file != young else None)
    write_atomic(tmp_path / "a[1].json", "whole")
    assert set(tmp_path.iterdir()) == {tmp_path / "a[1].json", young, *kept}


def test_one_makes_a_file_and_the_others_find_it(tmp_path):
    path, made, started = tmp_path / "new" / "cache", [], threading.Barrier(4)

    def make(number):
        made.append(number)
        path.write_text("whole")

    def want(number):
        started.wait()
        made_once(path, lambda: make(number))

    threads = [threading.Thread(target=want, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and list(path.parent.iterdir()) == [path]


def test_a_folder_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match=r"cannot write .*file/cache: .* choose another data_dir"):
        made_once(tmp_path / "file" / "cache", lambda: None)
