"""States of runs, as they are seen from outside."""

import fcntl
import hashlib
import os
import time
from contextlib import nullcontext

import pytest

from benchmark.federation import checkpoint
from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked, holder, run_lock
from benchmark.runs.states import CHECKPOINT, CHECKPOINTS, state, state_of
from datamodules.common.errors import RunError
from datamodules.io.sources import sha256_of
from run_folders import FACTS, RUN, completed, flocked, row, whole_run
from runs import configuration


def test_the_checkpoints_are_those_that_a_run_resumes_from(tmp_path):
    path = tmp_path / CHECKPOINT
    assert (path.name, checkpoint.previous(path).name) == CHECKPOINTS


@pytest.mark.parametrize("ago, alive", [(1, True), (600, False), (-1e6, False)])
def test_a_run_on_another_machine_is_left_alone_while_its_heart_beats(tmp_path, ago, alive):
    """Locks may not reach from one machine to another; the time of the lock's file does."""
    (tmp_path / "run.lock").write_text('{"pid": 4711, "host": "another-machine"}')
    then = time.time() - ago
    os.utime(tmp_path / "run.lock", (then, then))
    assert state(tmp_path) == ("running" if alive else "missing")
    refused = pytest.raises(RunLocked, match="process 4711 on another-machine")
    with refused if alive else nullcontext(), run_lock(tmp_path):
        assert holder(tmp_path)["pid"] == os.getpid()


def test_state(tmp_path):
    assert state(tmp_path) == "missing"
    folder = RunFolder(tmp_path)
    with folder.lock():
        assert state(tmp_path) == "running"
        folder.open(RUN, FACTS)
        assert state(tmp_path) == "running"
    assert state(tmp_path) == "stale"
    folder.fail(ValueError("x"), RUN)
    assert state(tmp_path) == "failed"
    whole_run(tmp_path / "whole")
    with flocked(tmp_path / "whole", fcntl.LOCK_EX):
        assert state(tmp_path / "whole") == "complete", "whoever has the lock"


def test_a_run_that_ends_while_one_asks_is_not_stale(tmp_path, monkeypatch):
    run_ = RunFolder(tmp_path)
    run_.open(RUN, FACTS)
    run_.append(row(3))
    monkeypatch.setattr("benchmark.runs.states.locked", lambda path: bool(run_.finish()) and False)
    assert state(tmp_path) == "complete"


def test_a_read_only_folder_can_be_looked_at(tmp_path, read_only):
    RunFolder(tmp_path).open(RUN, FACTS)
    (tmp_path / "run.lock").touch()
    with flocked(tmp_path, fcntl.LOCK_EX):
        read_only()
        assert state(tmp_path) == "running"
    assert state(tmp_path) == "stale" and holder(tmp_path) == {}
    with pytest.raises(RunError, match=r"cannot be written .Read-only.*give another --results_dir"):
        run_lock(tmp_path).__enter__()


def test_a_complete_run_of_other_data_is_outdated(tmp_path, monkeypatch):
    """A decoded data set is read once for all runs. Without it records count."""
    file = tmp_path / "svhn.npz"
    file.write_bytes(b"one")
    options = {"method": "fedavg", "data": "svhn", "runtime__data_dir": str(tmp_path)}
    runs = [configuration(tmp_path / "results", seed=seed, **options) for seed in (1, 2)]
    for one in runs:
        completed(one, 50.0, data_sha256={file.name: sha256_of(file)})
    read, hashed = [], hashlib.file_digest
    monkeypatch.setattr("hashlib.file_digest", lambda stream, name: read.append(stream.name) or hashed(stream, name))

    def states():
        known = {}
        return {state_of(one, known).state for one in runs}

    assert states() == {"complete"}
    assert read == [str(file)]
    file.write_bytes(b"two")
    assert states() == {"outdated"}
    file.unlink()
    assert states() == {"complete"}
