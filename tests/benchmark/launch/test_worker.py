"""One process at work: failures, checkpoints, full disks, folders that somebody else holds."""

import asyncio
import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmark import run
from benchmark.federation import checkpoint
from benchmark.federation.loop import Federation
from benchmark.launch import worker
from benchmark.launch.recorder import CHECKPOINT, Recorder
from benchmark.run import fit
from benchmark.runs.lock import RunLocked, run_lock
from benchmark.runs.records import read_record, read_rows, without_clock
from benchmark.runs.states import saved_rounds, state
from datamodules.common.errors import RunError, Stopped
from datamodules.digits import Digits
from methods.fedavg import FedAvg
from runs import MIXED, ROUNDS, SHORT, assert_same_run, configuration, interrupted


def test_a_failure_is_recorded_and_the_run_can_be_taken_up_again(tmp_path, reference, capsys):
    """After an error in the middle the same call finishes the run, as if nothing had happened."""
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 4)
    record = read_record(path)
    assert record["status"] == state(path) == "failed"
    assert "no space left on device" in record["error"]
    assert record["rounds"] == {"done": 4, "total": ROUNDS}
    assert "continues from" not in capsys.readouterr().err
    assert_same_run(fit(config), reference)
    assert f"{path}: continues from round 5 of {ROUNDS}\n" in capsys.readouterr().err


def test_an_averaged_model_changes_no_row_and_outlives_a_kill_at_the_end(tmp_path, reference, monkeypatch):
    """``reference`` averages six of its eight rounds. A kill between the last round and the record loses nothing."""
    config = configuration(tmp_path, **MIXED)

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Federation, "evaluate_averaged", killed)
        fit(config)
    assert checkpoint.load(config.folder / CHECKPOINT)["round"] == ROUNDS
    assert_same_run(fit(config), reference)
    plain = fit(configuration(tmp_path, **{**MIXED, "average_last": 0}))
    assert without_clock(read_rows(plain)) == without_clock(read_rows(reference))
    ours, theirs = read_record(plain), read_record(reference)
    assert "averaged" not in ours and theirs["averaged"]["rounds"] == 6
    assert all(ours[name] == theirs[name] for name in ("final", "best", "last_k_mean", "partition_hash", "bytes_up"))


def test_a_checkpoint_without_its_sums_is_refused(tmp_path):
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 4) / CHECKPOINT
    checkpoint.save(path, {**checkpoint.load(path), "summed": {}})
    with pytest.raises(RunError, match=r"summed\..* is missing, unknown, or of another shape; bring this run's own"):
        fit(config)


def test_a_run_without_its_rows_does_not_go_on(tmp_path, reference):
    """Its record would be complete without them; once they are back, so is the run."""
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 3)
    rows = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"at round 3, but metrics\.jsonl has no row of round 0; restore the file"):
        fit(config)
    assert state(path) == "failed"
    (path / "metrics.jsonl").write_bytes(rows)
    assert_same_run(fit(config), reference)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("a digit", r"metrics\.jsonl: the rows before round 3 differ from those written when the check"),
        ("twice", r"metrics\.jsonl: line 3 has round 1 after round 1; restore the file"),
        ("swapped", r"metrics\.jsonl: line 3 has round 1 after round 2; restore the file"),
    ],
)
def test_the_rows_of_an_interrupted_run_are_not_taken_on_trust(tmp_path, reference, change, says):
    """Its digest would seal them. However often one tries; once they are back, the run goes on to the same bits."""
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 3)
    file = path / "metrics.jsonl"
    whole = file.read_text()
    zero, one, two = whole.splitlines(keepends=True)
    better = json.dumps({**json.loads(one), "acc": 99.0}) + "\n"
    changed = {"a digit": [zero, better, two], "twice": [zero, one, one, two], "swapped": [zero, two, one]}[change]
    file.write_text("".join(changed))
    for _ in range(2):
        with pytest.raises(RunError, match=says):
            fit(config)
        assert state(path) == "failed" and file.read_text() == "".join(changed)
    file.write_text(whole)
    assert_same_run(fit(config), reference)


def test_rows_that_change_while_a_run_goes_on_are_not_sealed(tmp_path, monkeypatch):
    config = configuration(tmp_path, **SHORT)
    file, whole = config.folder / "metrics.jsonl", Federation.run_round

    def changes(self, number):
        if number == 1:
            file.write_text(json.dumps({**json.loads(file.read_text()), "acc": 99.0}) + "\n")
        return whole(self, number)

    monkeypatch.setattr(Federation, "run_round", changes)
    with pytest.raises(RunError, match=r"metrics\.jsonl: the rows are not those that the run wrote; restore the"):
        fit(config)
    assert state(config.folder) == "failed"


HEADS = {
    "round": [..., "1", -1, 2.0, 99],
    "server": [..., None, {}, {"weight": 1.0}],
    "clients": [..., [], {"0": ({}, [])}, {0: {}}, {0: ({"w": 1}, [])}, {0: ({"w": torch.ones(1)}, [])}],
    "memory": [None, {0: [1]}],
    "server_state": [..., "none", [{}]],
    "bytes": [..., (1,), ("1", 2), (1, -2)],
    "steps": [None],
    "skipped": ["no"],
    "summed": [None, {"w": 1}, {"stranger": torch.zeros(1)}],
    "origin": ["here", {"run_id": "a"}],
    "rows": [5],
}


def test_a_head_that_lacks_something_is_one_clear_error(tmp_path):
    """Its checksum is right: it was made by hand, or by other code. ``...``: the field is missing."""
    config = configuration(tmp_path, **SHORT)
    path = interrupted(config, 1) / CHECKPOINT
    saved = checkpoint.load(path)
    for field, values in HEADS.items():
        for value in values:
            head = io.BytesIO()
            torch.save({k: v for k, v in {**saved, field: value}.items() if v is not ...}, head)
            path.write_bytes(checkpoint.MAGIC + hashlib.sha256(head.getvalue()).digest() + head.getvalue())
            with pytest.raises(RunError, match=rf"checkpoint\.pt: .*\b{field}\b.*; .*delete .* to start .*over"):
                fit(config)
    checkpoint.save(path, saved)
    assert state(fit(config)) == "complete"


def test_a_checkpoint_says_where_it_comes_from(tmp_path, capsys):
    """That of another run or partition is refused; an old one, which does not say, is taken."""
    ours, other = configuration(tmp_path, **SHORT), configuration(tmp_path, **{**SHORT, "seed": 4})
    saved = checkpoint.load(interrupted(ours, 1) / CHECKPOINT)
    record = read_record(ours.folder)
    assert saved["origin"] == {key: record[key] for key in ("run_id", "partition_hash", "code_version")}
    path = interrupted(other, 1) / CHECKPOINT
    theirs = checkpoint.load(path)
    checkpoint.save(path, saved)
    with pytest.raises(RunError, match=f"its run_id is {ours.id} .*, not {other.id}; bring this run's own"):
        fit(other)
    checkpoint.save(path, {**theirs, "origin": {**theirs["origin"], "partition_hash": "another"}})
    with pytest.raises(RunError, match="its partition_hash is another"):
        fit(other)
    checkpoint.save(path, {key: value for key, value in theirs.items() if key not in ("origin", "rows")})
    assert state(fit(other)) == "complete"
    assert "its checkpoint is of an older version and cannot vouch for its rows" in capsys.readouterr().err


def test_weights_are_there_whole_or_not_at_all(tmp_path, monkeypatch):
    config = configuration(tmp_path, **SHORT)
    replaced = os.replace

    def full(source, target):
        if Path(target).name == "weights.pt":
            raise OSError("no space left on device")
        replaced(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            fit(config)
    assert not (config.folder / "weights.pt").exists()
    assert torch.load(fit(config) / "weights.pt")


@pytest.mark.parametrize("name", ["clients-3-", "checkpoint.pt"])
def test_a_disk_that_is_full_when_a_checkpoint_is_written(tmp_path, reference, monkeypatch, name):
    """The error names the file, the checkpoint before stays, and the run goes on from it once there is room."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    path, fsync, written = config.folder, os.fsync, []

    def full(handle):
        written.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.startswith(name))
        if sum(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as error:
            fit(config)
    assert Path(error.value.filename).name.startswith(name)
    assert 0 < checkpoint.load(path / CHECKPOINT)["round"] == saved_rounds(path) < ROUNDS
    assert not list(path.rglob("*.tmp"))
    assert_same_run(fit(config), reference)


def test_a_stop_is_no_failure_where_the_last_rounds_cannot_be_saved(tmp_path, reference, monkeypatch, capsys):
    """The run ends as it was asked to, says what is lost, and goes on from its checkpoint."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    whole, save = Federation.run_round, Recorder.save

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    def stopped(self, number):
        if number == 3:
            patch.setattr(Recorder, "save", full)
            raise Stopped(signal.SIGTERM)
        return whole(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "run_round", stopped)
        with pytest.raises(Stopped):
            fit(config)
    assert "the last rounds could not be saved: [Errno 28] No space left on device" in capsys.readouterr().err
    assert Recorder.save is save
    assert_same_run(fit(config), reference)


@pytest.mark.parametrize("damage", ["head", "client"])
def test_a_damaged_checkpoint_is_replaced_by_its_predecessor(tmp_path, reference, damage):
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 5)
    newest = max(path.rglob("clients-*"), key=lambda file: file.stat().st_mtime_ns)
    file = newest if damage == "client" else path / CHECKPOINT
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    assert_same_run(fit(config), reference)


def test_other_data_is_refused_however_often_one_tries(tmp_path, monkeypatch):
    """The refusal must not forget the hashes that it is based on."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **SHORT)
    whole = Federation.run_round
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "run_round", lambda self, n: whole(self, n) if n < 1 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(config)
    facts = read_record(config.folder)["partition_hash"]
    with monkeypatch.context() as patch:
        real = worker.facts
        patch.setattr(worker, "facts", lambda data: {**real(data), "partition_hash": "another"})
        for _ in range(3):
            with pytest.raises(RunError, match="cannot resume, partition_hash was"):
                fit(config)
    assert read_record(config.folder)["partition_hash"] == facts
    fit(config)
    assert state(config.folder) == "complete"


def cancel(self):
    raise asyncio.CancelledError("by nobody")


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda self: sys.exit(0), r"ended the program \(exit code 0\)"),
        (lambda self: os._exit(4), r"ended the program \(exit code 4\)"),
        (cancel, r"raised CancelledError: by nobody"),
    ],
    ids=["sys.exit", "os._exit", "CancelledError"],
)
def test_a_data_set_that_ends_the_program_is_an_error(tmp_path, monkeypatch, read, told):
    """Whatever it does that is no ordinary error."""
    monkeypatch.setattr(Digits, "read", read)
    config, at_once = configuration(tmp_path, **SHORT), os._exit
    with pytest.raises(RunError, match=f"the method or the data set {told}"):
        fit(config)
    assert state(config.folder) == "failed" and os._exit is at_once


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), Mute()], ids=lambda e: type(e).__name__)
def test_a_method_that_raises_anything_has_failed(tmp_path, monkeypatch, error):
    """Its record says so, with the traceback."""

    def raises(self, *args):
        raise error

    monkeypatch.setattr(FedAvg, "training_step", raises)
    config = configuration(tmp_path, **SHORT)
    with pytest.raises(RunError, match=rf"^FedAvg, client 0 .*, round 0: {type(error).__name__}: "):
        fit(config)
    record = read_record(config.folder)
    assert record["status"] == "failed" and "in raises" in record["error"]


EXITS = """
import os, threading
from benchmark.launch.exits import os_exit_raises

with os_exit_raises():
    if not (child := os.fork()):
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    threading.Thread(target=os._exit, args=(7,)).start()
    threading.Event().wait(60)
"""


def test_other_threads_and_forked_processes_end_at_once():
    """Only the main thread of the run is kept from ending it."""
    assert subprocess.run([sys.executable, "-c", EXITS], timeout=60, check=False).returncode == 7


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["record.json", "metrics.jsonl", CHECKPOINT, "run.lock"])
def test_a_pipe_in_place_of_a_file_is_one_clear_error(tmp_path, name):
    """Whoever opens a pipe waits for its other end, which never comes."""
    config = configuration(tmp_path, **SHORT)
    path = interrupted(config, 1)
    (path / name).unlink()
    os.mkfifo(path / name)
    (path / f"{CHECKPOINT}.previous").unlink(missing_ok=True)
    assert state(path) == ("damaged" if name == "record.json" else "failed")
    with pytest.raises(RunError, match=rf"{name}.*it is no regular file.*(delete|remove) "):
        fit(config)


def test_a_run_in_progress_is_left_alone(tmp_path):
    """Whoever holds the folder keeps it, and its record stays as it is."""
    config = configuration(tmp_path, **SHORT)
    path = config.folder
    with run_lock(path):
        with pytest.raises(RunLocked, match="is working on this run"):
            fit(config)
        assert not (path / "record.json").exists()
    assert state(fit(config)) == "complete"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_that_another_process_completes_meanwhile_is_left_alone(tmp_path, monkeypatch, devices):
    """Between the look at its record and the lock."""
    config = configuration(tmp_path, **SHORT)
    launch, done = run.Fabric.launch, {}

    def files(path):
        kept = [file for file in path.iterdir() if file.name != "run.lock"]
        return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in kept}

    def late(self, *args):
        monkeypatch.setattr(run.Fabric, "launch", launch)
        done.update(files(fit(config)))
        return launch(self, *args)

    monkeypatch.setattr(run.Fabric, "launch", late)
    assert files(fit(config.replace(runtime=replace(config.config.runtime, devices=devices)))) == done


def test_a_record_says_after_which_round_its_run_would_continue(tmp_path):
    config = configuration(tmp_path, **SHORT)
    assert saved_rounds(config.folder) == 0
    path = interrupted(config, 1)
    assert saved_rounds(path) == 1 == checkpoint.load(path / CHECKPOINT)["round"]
    assert "saved_rounds" not in read_record(fit(config))["timing"]


def test_a_warm_up_that_never_ends_is_said(tmp_path, capsys):
    """The line at the start of a run warns."""
    fit(configuration(tmp_path, method="cbafed", rounds=1))
    assert "ALL 1 rounds lie within the warm-up of 501" in capsys.readouterr().err
