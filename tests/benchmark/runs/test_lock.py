"""Locks of run folders: who holds one, who only looks."""

import fcntl
import subprocess
import sys
import threading

import pytest

from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked, locked, run_lock
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
    assert locked(tmp_path)
    message = f"process {process.pid} on .* is working on this run"
    with pytest.raises(RunLocked, match=message), run_lock(tmp_path):
        pass
    process.kill()
    process.communicate()
    assert not locked(tmp_path)
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path).lock():
        assert locked(tmp_path)
        raise KeyboardInterrupt
    assert not locked(tmp_path)


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


def test_an_unlocked_folder(tmp_path):
    assert not locked(tmp_path / "nowhere")
