"""Locks of run folders: who holds one, who only looks."""

import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest

from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked, holder, locked, run_lock
from run_folders import flocked

HOLD = """
import pathlib, sys, time
from benchmark.runs.lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_keeps_others_out_and_survives_no_kill(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    assert locked(tmp_path) and holder(tmp_path)["pid"] == process.pid
    message = f"process {process.pid} on .* is working on this run"
    with pytest.raises(RunLocked, match=message), run_lock(tmp_path):
        pass
    process.kill()
    process.communicate()
    assert not locked(tmp_path) and holder(tmp_path)["pid"] == process.pid
    with RunFolder(tmp_path).lock():
        assert locked(tmp_path) and holder(tmp_path)["pid"] == os.getpid()
    assert not locked(tmp_path) and holder(tmp_path) == {}


def test_a_lock_that_its_last_holder_has_removed_is_none(tmp_path, monkeypatch):
    """Another process has made a new one since, and may hold it."""
    waiting, take = [], fcntl.flock

    def late(handle, kind):
        take(handle, kind)
        if not waiting:
            waiting.append(handle)
            (tmp_path / "run.lock").unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    with run_lock(tmp_path):
        assert locked(tmp_path) and holder(tmp_path)["pid"] == os.getpid()


def test_an_error_releases_the_lock_in_good_order(tmp_path):
    with pytest.raises(KeyboardInterrupt), run_lock(tmp_path):
        raise KeyboardInterrupt
    assert holder(tmp_path) == {}


def test_a_disk_too_full_for_a_lock_names_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device: .*run\.lock"), run_lock(tmp_path):
        pass


@pytest.mark.parametrize("text", ["4711", "null", "[1]", "{"])
def test_a_lock_file_of_something_else_is_taken_over(tmp_path, text):
    (tmp_path / "run.lock").write_text(text)
    with run_lock(tmp_path):
        assert holder(tmp_path)["pid"] == os.getpid()


def test_those_who_only_look_do_not_see_each_other(tmp_path):
    with flocked(tmp_path, fcntl.LOCK_SH):
        assert not locked(tmp_path)
    with flocked(tmp_path, fcntl.LOCK_EX):
        assert locked(tmp_path)


def test_one_who_looks_does_not_keep_a_run_from_starting(tmp_path):
    looking = flocked(tmp_path, fcntl.LOCK_SH)
    looking.__enter__()
    timer = threading.Timer(0.05, looking.__exit__, (None, None, None))
    timer.start()
    with run_lock(tmp_path):
        assert locked(tmp_path)
    timer.join()


def test_a_lock_that_may_not_be_read_counts_as_free(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "run.lock").touch()
    monkeypatch.setattr(os, "open", denied)
    assert not locked(tmp_path)


def test_an_unlocked_folder(tmp_path):
    assert not locked(tmp_path / "nowhere") and holder(tmp_path / "nowhere") == {}
