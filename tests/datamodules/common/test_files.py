"""Files appear whole or not at all; errors of the disk name the file."""

import errno
import os
import threading
import time
from contextlib import suppress

import pytest

from datamodules.common.errors import DataError
from datamodules.common.files import made_once, write_atomic


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


def test_one_at_a_time_makes_a_file_and_the_next_after_one_that_failed(tmp_path):
    """Who waited and who came later made it at once: the first had taken their lock away."""
    path, at_work, made, most, begun = tmp_path / "new" / "cache", [], [], [], threading.Event()

    def make(number):
        made.append(number)
        at_work.append(number)
        begun.set()
        time.sleep(0.2)
        most.append(len(at_work))
        at_work.remove(number)
        if number == 0:
            raise OSError("no network")
        path.write_text("whole")

    def want(number):
        with suppress(OSError):
            made_once(path, lambda: make(number))

    threads = [threading.Thread(target=want, args=(number,)) for number in range(4)]
    for thread, pause in zip(threads, (0, 0.2, 0, 0), strict=True):
        thread.start()
        begun.wait()
        time.sleep(pause)
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(made) == 2 and made[0] == 0
    assert list(path.parent.glob("[!.]*")) == [path]


def test_a_folder_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match=r"cannot write .*file/cache: .* choose another data_dir"):
        made_once(tmp_path / "file" / "cache", lambda: None)
