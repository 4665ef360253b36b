"""Locks of run folders: who holds one, who only looks."""

import fcntl
import os
import threading
import time

import pytest

from benchmark.launch.recorder import Recorder
from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked, holder, locked, run_lock
from benchmark.runs.records import read_record
from benchmark.runs.states import state
from run_folders import FACTS, RUN, flocked, row, whole_run
from two_processes import forks


def hold(folder):
    with run_lock(folder):
        (folder / "held").touch()
        time.sleep(60)


def test_the_lock_keeps_others_out_and_survives_no_kill(tmp_path):
    process = forks().Process(target=hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    assert locked(tmp_path) and holder(tmp_path)["pid"] == process.pid
    message = f"process {process.pid} on .* is working on this run"
    with pytest.raises(RunLocked, match=message), run_lock(tmp_path):
        pass
    process.kill()
    process.join()
    assert not locked(tmp_path) and holder(tmp_path)["pid"] == process.pid
    with pytest.raises(KeyboardInterrupt), run_lock(tmp_path):
        assert locked(tmp_path) and holder(tmp_path)["pid"] == os.getpid()
        raise KeyboardInterrupt
    assert not locked(tmp_path) and holder(tmp_path) == {}


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


def test_a_process_that_slept_while_another_host_finished_its_run_writes_nothing(tmp_path):
    """Neither a row, nor a checkpoint, nor its failure, nor a heartbeat: the record stays complete."""
    ours = RunFolder(tmp_path, heartbeat_s=0)
    recorder = Recorder(RUN, ours)
    with ours.lock():
        ours.open(RUN, FACTS)
        ours.append(row(0))
        for name in ("run.lock", "metrics.jsonl"):  # the other host does not see who holds the first
            (tmp_path / name).unlink()
        with run_lock(tmp_path):
            whole_run(tmp_path)
        before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
        recorder.state = {"round": 1}
        for write in (lambda: ours.append(row(1)), lambda: ours.beat(2), recorder.save, lambda: ours.rewind(0)):
            with pytest.raises(RunLocked, match="taken this run over"):
                write()
        ours.fail(RunLocked("taken over"), RUN)
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    assert read_record(tmp_path)["status"] == "complete" and state(tmp_path) == "complete"


@pytest.mark.timeout(20)
def test_a_heartbeat_touches_the_lock_until_another_process_has_it(tmp_path):
    """Other hosts go by it; it must not keep the claim of another one alive."""
    file = tmp_path / "run.lock"
    with run_lock(tmp_path, heartbeat_s=0.01):
        os.utime(file, (0, 0))
        while file.stat().st_mtime == 0:
            time.sleep(0.01)
        file.write_text('{"pid": 4711, "host": "another-machine"}')
        os.utime(file, (0, 0))
        time.sleep(0.05)
        assert file.stat().st_mtime == 0
    assert holder(tmp_path)["pid"] == 4711
