"""Whole runs from their configuration: records, kills, several processes, precisions, and a user's own method."""

import errno
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from benchmark import run
from benchmark.api import load_run
from benchmark.config import apply, folder, from_dict, identity, resolve, run_id
from benchmark.federation import checkpoint
from benchmark.launch.lock import RunLocked, locked, run_lock
from benchmark.launch.signals import STOPPED
from benchmark.report.records import (
    RunFolder,
    digest,
    read_record,
    read_rows,
    saved_rounds,
    state,
    validate,
    without_clock,
)
from benchmark.run import fit, placed
from datamodules.common.errors import BenchError, ConfigError, DataError, RunError
from datamodules.digits import Digits

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 8
OPTIONS = {
    "data": "digits",
    "data.num_clients": 6,
    "data.partition": "iid",
    "rounds": ROUNDS,
    "seed": 3,
    "last_k": 3,
    "runtime.devices": 1,
    "runtime.threads": 1,
    "runtime.accelerator": "cpu",
    "runtime.wandb": "off",
}
MIXED = {"method": "fed_consist", "method.warmup_rounds": 1}
SHORT = {"method": "fedavg", "rounds": 2}


def configuration(results, **options):
    """Options with ``__`` for the dot, on top of ``OPTIONS``."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    return resolve(from_dict(apply({}, {**OPTIONS, "runtime.results_dir": str(results), **given})))


@pytest.fixture(autouse=True)
def ordinary_memory(monkeypatch):
    """The test process goes on after a run and wants its memory back."""
    monkeypatch.setenv("FSSL_KEEP_MEMORY", "0")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run of a method with personal state, in one process."""
    return fit(configuration(tmp_path_factory.mktemp("reference"), **MIXED))


def assert_same_run(path, other):
    """Equal but for the clock and the hardware, file by file."""
    names = {file.name for file in path.iterdir()}
    assert names == {file.name for file in other.iterdir()}
    assert without_clock(read_record(path)) == without_clock(read_record(other))
    assert without_clock(read_rows(path)) == without_clock(read_rows(other))
    assert (path / "config.yaml").read_bytes() == (other / "config.yaml").read_bytes()
    ours, theirs = (torch.load(p / "weights.pt") for p in (path, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(v, theirs[k]) for k, v in ours.items())


def interrupted(config, at):
    """The folder of a run that broke at the beginning of round ``at``, with a checkpoint of every round."""
    whole = run.Federation.run_round

    def breaks(self, number):
        if number == at:
            raise OSError("no space left on device")
        return whole(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.Federation, "run_round", breaks)
        with pytest.raises(OSError, match="no space"):
            fit(replace(config, runtime=replace(config.runtime, checkpoint_every_s=0)))
    return folder(config)


# --- one run


def test_a_run_and_its_record(reference):
    config = configuration(reference.parents[1], **MIXED)
    record, rows = read_record(reference), read_rows(reference)
    validate(record, "here")
    assert reference == folder(config) and reference.name == f"fed_consist-digits-{run_id(config)}"
    assert record["status"] == "complete" and record["error"] is None
    assert record["config"] == json.loads(json.dumps(identity(config)))
    assert record["seeds"] == {"run": 3, "partition": 1337}
    assert record["rounds"] == {"done": ROUNDS, "total": ROUNDS}
    assert [row["round"] for row in rows] == list(range(ROUNDS))
    assert record["final"] == {"round": ROUNDS - 1, **{k: rows[-1][k] for k in record["final"] if k != "round"}}
    assert record["final"]["acc"] == rows[-1]["acc"]
    assert record["best"]["acc"] == max(row["acc"] for row in rows if not row.get("warmup"))
    assert record["last_k_mean"]["rounds"] == 3
    assert record["last_k_mean"]["acc"] == pytest.approx(sum(row["acc"] for row in rows[-3:]) / 3)
    assert record["bytes_up"] == rows[-1]["bytes_up"] == 92_626 * 4 * (1 + 6 * (ROUNDS - 1))
    counts = {role: [sum(map(int, line.split())) for line in lines] for role, lines in record["class_counts"].items()}
    held = sum(record["labelled_histogram"][0])
    assert counts == {"labelled": [held, *[0] * 5], "unlabelled": [0, *[239] * 5], "server": []}
    assert len(record["labelled_histogram"]) == 1 and 230 < sum(record["labelled_histogram"][0]) < 250
    assert len(record["partition_hash"]) > 8 and record["data_sha256"]
    assert record["environment"]["devices"] == record["environment"]["threads"] == 1
    assert record["environment"]["precision"] == "32-true"
    assert record["timing"]["seconds"] > 0
    names = {file.name for file in reference.iterdir()}
    assert names == {"config.yaml", "metrics.jsonl", "record.json", "weights.pt", "run.lock"}
    assert not locked(reference)


def test_a_complete_run_is_left_alone(reference, monkeypatch):
    """A second ``fit`` runs nothing and changes no byte and no time stamp; a left-over checkpoint goes."""
    monkeypatch.setattr(run, "Fabric", None)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in reference.iterdir()}
    config = configuration(reference.parents[1], **MIXED)
    (reference / run.CHECKPOINT).write_bytes(b"the run was killed before it could remove this")
    assert fit(config) == reference
    assert fit(replace(config, runtime=replace(config.runtime, devices=2))) == reference
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in reference.iterdir()} == before


def test_a_record_made_under_other_defaults_is_refused(tmp_path):
    config = configuration(tmp_path, **SHORT)
    path = fit(config)
    record = json.loads((path / "record.json").read_text())
    for status in ("complete", "running"):
        record["config"]["method"]["init_args"]["momentum"] = 0.5
        record["status"] = status
        record["digest"] = digest(record, read_rows(path))
        (path / "record.json").write_text(json.dumps(record))
        with pytest.raises(ConfigError, match=r"momentum: recorded with 0\.5, now 0\.9\. Delete the folder"):
            fit(config)


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


def test_a_run_without_its_rows_does_not_go_on(tmp_path, reference):
    """Its record would be complete without them; once they are back, so is the run."""
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 3)
    rows = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"at round 3, but metrics\.jsonl has no row of round 0; bring the file back"):
        fit(config)
    assert state(path) == "failed"
    (path / "metrics.jsonl").write_bytes(rows)
    assert_same_run(fit(config), reference)


def test_a_checkpoint_says_where_it_comes_from(tmp_path):
    """That of another run or partition is refused; an old one, which does not say, is taken."""
    ours, other = configuration(tmp_path, **SHORT), configuration(tmp_path, **{**SHORT, "seed": 4})
    saved = checkpoint.load(interrupted(ours, 1) / run.CHECKPOINT)
    record = read_record(folder(ours))
    assert saved["origin"] == {key: record[key] for key in ("run_id", "partition_hash", "code_version")}
    path = interrupted(other, 1) / run.CHECKPOINT
    theirs = checkpoint.load(path)
    checkpoint.save(path, saved)
    with pytest.raises(RunError, match=f"its run_id is {run_id(ours)} .*, not {run_id(other)}; bring this run's own"):
        fit(other)
    checkpoint.save(path, {**theirs, "origin": {**theirs["origin"], "partition_hash": "another"}})
    with pytest.raises(RunError, match="its partition_hash is another"):
        fit(other)
    checkpoint.save(path, {key: value for key, value in theirs.items() if key != "origin"})
    assert state(fit(other)) == "complete"


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
    assert not (folder(config) / "weights.pt").exists()
    assert torch.load(fit(config) / "weights.pt")


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_torn_weights_are_named(reference, tmp_path, keep):
    path = Path(shutil.copytree(reference, tmp_path / reference.name))
    (path / "weights.pt").write_bytes((path / "weights.pt").read_bytes()[:keep])
    with pytest.raises(RunError, match=r"weights\.pt: the weights cannot be read \(.*\); run it again"):
        _ = load_run(path).method


@pytest.mark.parametrize("name", ["clients-3-", "checkpoint.pt"])
def test_a_disk_that_is_full_when_a_checkpoint_is_written(tmp_path, reference, monkeypatch, name):
    """The error names the file, the checkpoint before stays, and the run goes on from it once there is room."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    path, fsync, written = folder(config), os.fsync, []

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
    assert 0 < checkpoint.load(path / run.CHECKPOINT)["round"] == saved_rounds(path) < ROUNDS
    assert not list(path.rglob("*.tmp"))
    assert_same_run(fit(config), reference)


@pytest.mark.parametrize("damage", ["head", "client"])
def test_a_damaged_checkpoint_is_replaced_by_its_predecessor(tmp_path, reference, damage):
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 5)
    newest = max(path.rglob("clients-*"), key=lambda file: file.stat().st_mtime_ns)
    file = newest if damage == "client" else path / run.CHECKPOINT
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    assert_same_run(fit(config), reference)


def test_a_folder_whose_name_looks_like_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(configuration("1e5", **SHORT))
    assert [record.parts[0] for record in Path().rglob("record.json")] == ["1e5"]


def test_a_lost_gpu_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    interrupted(configuration(tmp_path, **SHORT), 1)


def test_other_data_is_refused_however_often_one_tries(tmp_path, monkeypatch):
    """The refusal must not forget the hashes that it is based on."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **SHORT)
    whole = run.Federation.run_round
    with monkeypatch.context() as patch:
        patch.setattr(run.Federation, "run_round", lambda self, n: whole(self, n) if n < 1 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(config)
    facts = read_record(folder(config))["partition_hash"]
    with monkeypatch.context() as patch:
        real = run.facts
        patch.setattr(run, "facts", lambda data: {**real(data), "partition_hash": "another"})
        for _ in range(3):
            with pytest.raises(RunError, match="cannot resume, partition_hash was"):
                fit(config)
    assert read_record(folder(config))["partition_hash"] == facts
    fit(config)
    assert state(folder(config)) == "complete"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"roster__participant": 2}, ConfigError, "unknown roster argument 'participant'; did you mean 'participants'"),
        ({"roster__participants": "many"}, ConfigError, "roster .*many"),
        ({"roster__participants": 7}, ConfigError, "7 participants per round from 6 clients"),
        ({"roster__rule": "x"}, ConfigError, "unknown rule 'x'"),
        ({"data__scenario": "server"}, ConfigError, "needs num_labels"),
        ({"data__pipeline": "none"}, ConfigError, "unknown pipeline 'none'"),
        ({"data__num_clients": 5000}, BenchError, "5000"),
        ({"model": "small_cn"}, ConfigError, "small_cnn"),
        ({"model_args__depth": 3}, ConfigError, "unknown option depth"),
        ({"method__lr": "fast"}, ConfigError, "lr"),
        ({"method__batch_size": 0}, ConfigError, "batch_size=0.* is out of range"),
        ({"method__clip_norm": -1.0}, ConfigError, r"clip_norm=-1.0 is out of range"),
        ({"seed": -1}, ConfigError, "seed is -1; it must be 0 to"),
        ({"data__partition_seed": -1}, ConfigError, "partition_seed is -1; NumPy takes 0 to"),
        ({"runtime__devices": 0}, ConfigError, "devices is 0; it must be at least 1"),
        ({"runtime__num_nodes": 0}, ConfigError, "num_nodes is 0; it must be at least 1"),
        ({"runtime__num_nodes": 2}, ConfigError, "2 nodes .* nothing has started this process on each.* srun"),
        ({"runtime__threads": -1}, ConfigError, "threads is -1; it must be at least 1"),
        ({"data__num_clients": 0}, DataError, "over 0 clients: take at least one"),
        ({"runtime__accelerator": "gpux"}, ConfigError, "invalid accelerator name"),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        fit(configuration(tmp_path, **{**SHORT, **options}))


def test_processes_that_end_without_a_record_are_no_success(tmp_path, monkeypatch):
    """However they ended: with code 0, too."""
    monkeypatch.setattr(run.Fabric, "launch", lambda *_: None)
    with pytest.raises(RunError, match="ended without an error, but the run is not complete; run it again"):
        fit(configuration(tmp_path, **SHORT))


def test_a_data_set_that_ends_the_program_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Digits, "read", lambda self: sys.exit(0))
    config = configuration(tmp_path, **SHORT)
    with pytest.raises(RunError, match=r"the method or the data set ended the program \(sys\.exit\(0\)\)"):
        fit(config)
    assert state(folder(config)) == "failed"


def test_a_run_in_progress_is_left_alone(tmp_path):
    """Whoever holds the folder keeps it, and its record stays as it is."""
    config = configuration(tmp_path, **SHORT)
    path = folder(config)
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
    assert files(fit(replace(config, runtime=replace(config.runtime, devices=devices)))) == done


# --- processes that die


@pytest.mark.timeout(300)
def test_kills_at_random_moments_leave_no_trace(tmp_path, reference):
    """SIGKILL while starting, training, writing rows or checkpoints: the resumed run is the uninterrupted one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.run", "methods.fed_consist", "datamodules.digits"])
    rng = random.Random(0)
    config = configuration(tmp_path, **MIXED)
    path = folder(config)
    pace = max(0.02, read_record(reference)["timing"]["seconds"] / ROUNDS)
    kills = []
    for starting, every_s in ((True, 0.0), (False, 0.0), (False, 1e9), (False, 0.0)):
        runtime = replace(config.runtime, checkpoint_every_s=every_s)
        process = context.Process(target=fit, args=(replace(config, runtime=runtime),))
        process.start()
        last = count = len(read_rows(path))
        while not starting and count <= last and process.is_alive():  # until a row is added
            time.sleep(0.002)
            last, count = count, len(read_rows(path))
        time.sleep(rng.uniform(0.0, 0.5) * pace)
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        kills.append(len(read_rows(path)))
        assert state(path) in ("missing", "stale")
        assert starting or (path / run.CHECKPOINT).exists()
    (path / ".record.json.4711.tmp").write_text("half")  # as a kill inside a write leaves
    assert len(kills) >= 3 and kills[1] >= 1, "the runs ended before they were killed"
    assert_same_run(fit(config), reference)


def started(config, rows):
    """A process that works on a run, which has so many rows by now."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.run", "methods.fed_consist", "datamodules.digits"])
    process, path = context.Process(target=fit, args=(config,)), folder(config)
    process.start()
    while process.is_alive() and len(read_rows(path)) < rows:
        time.sleep(0.005)
    return process


def descendants(pid):
    """Processes that a process has started, and theirs."""
    found = []
    for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(number), *descendants(int(number))]
    return found


def alive(pid):
    """Whether a process goes on; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ranks(process):
    """Processes of a run, by rank: the youngest that the process has started."""
    return sorted(pid for pid in descendants(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def assert_no_orphans(pids):
    """The processes end within seconds."""
    deadline = time.monotonic() + 20
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.timeout(300)
def test_a_signal_saves_the_end_of_the_last_round(tmp_path, reference):
    """Although checkpoints are hours apart: the code says so, and the next start goes on exactly there."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=1e9, **MIXED)
    path = folder(config)
    for number, rows in ((signal.SIGTERM, 2), (signal.SIGUSR1, 5)):
        process = started(config, rows)
        os.kill(process.pid, number)
        process.join()
        assert process.exitcode == STOPPED
        assert state(path) == "stale" and read_record(path)["error"] is None
        done = len(read_rows(path))
        assert rows <= done < ROUNDS, "the run ended before it was stopped"
        assert checkpoint.load(path / run.CHECKPOINT)["round"] == saved_rounds(path)
        assert done - saved_rounds(path) in (0, 1), "1: the signal came while the row was being written"
    assert_same_run(fit(config), reference)


@pytest.mark.timeout(300)
def test_the_processes_of_a_run_end_together_and_it_goes_on(tmp_path, reference):
    """One of two is killed, then the one that started them is interrupted alone: no orphan, and the same bits."""
    config = configuration(tmp_path, runtime__devices=2, runtime__checkpoint_every_s=0, **MIXED)
    path = folder(config)
    process = started(config, 2)
    pids = ranks(process)
    os.kill(pids[-1], signal.SIGKILL)
    began = time.monotonic()
    process.join()
    assert process.exitcode == 1 and time.monotonic() - began < 20
    assert_no_orphans(pids)
    assert state(path) == "failed"
    assert "terminated with signal SIGKILL; the same command continues" in read_record(path)["error"]
    done = saved_rounds(path)
    assert 0 < done < ROUNDS

    process = started(config, len(read_rows(path)) + 2)  # the signal may come before the last of them is saved
    pids = ranks(process)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert_no_orphans(pids)
    assert state(path) == "stale" and done < saved_rounds(path) < ROUNDS
    assert_same_run(fit(configuration(tmp_path, **MIXED)), reference)


def raised(error):
    """What the launcher raises where a process died of an error, which came of another one."""
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise error from cause
    except Exception:
        text = traceback.format_exc()
    return ProcessRaisedException(f"\n\n-- Process 1 terminated with the following error:\n{text}", 1, 4711)


LINES = "Mine.training_step, client 3: ValueError: two\n  lines\n\nOriginal Traceback (most recent call last):\n  x"


@pytest.mark.parametrize(
    ("exception", "kind", "message", "status"),
    [
        (raised(DataError("no file: look there")), DataError, r"^no file: look there$", "failed"),
        (raised(RunError(LINES)), RunError, f"^{re.escape(LINES)}$", "failed"),
        (raised(RunLocked("/x: process 1")), RunLocked, r"^/x: process 1$", "running"),
        (raised(RuntimeError("boom\nbang")), RunError, r"RuntimeError: boom\nbang; the same command", "failed"),
        (
            ProcessExitedException("process 1 terminated with signal SIGKILL", 1, 4711, -9),
            RunError,
            "SIGKILL",
            "failed",
        ),
    ],
)
def test_what_a_process_dies_of_is_told_and_recorded(tmp_path, monkeypatch, exception, kind, message, status):
    """Errors of ours keep their class; a run that another process works on keeps its record."""
    config = configuration(tmp_path, runtime__devices=2, **SHORT)

    def launch(self, function, resolved):
        RunFolder(folder(config)).open(config)
        raise exception

    monkeypatch.setattr(run.Fabric, "launch", launch)
    with pytest.raises(kind, match=message) as error:
        fit(config)
    assert type(error.value) is kind
    record = read_record(folder(config))
    assert record["status"] == status
    assert status == "running" or (str(exception) in record["error"] and str(error.value) in record["error"])


def test_an_error_that_follows_from_the_death_of_another_process_is_not_what_is_recorded(tmp_path, monkeypatch):
    """The first process may notice, and record, that it lost the other one before that one's error is known."""
    config = configuration(tmp_path, runtime__devices=2, **SHORT)

    def launch(self, function, resolved):
        RunFolder(folder(config)).fail(RuntimeError("connection closed by peer"), config)
        raise raised(RunError("client 3, round 5: boom"))

    monkeypatch.setattr(run.Fabric, "launch", launch)
    with pytest.raises(RunError, match="client 3, round 5: boom"):
        fit(config)
    error = read_record(folder(config))["error"]
    assert "client 3, round 5: boom" in error and "connection closed" not in error


def test_missing_data_is_missed_before_processes_start(tmp_path, monkeypatch):
    def read(self):
        raise DataError("no file: look there")

    monkeypatch.setattr(Digits, "read", read)
    monkeypatch.setattr(run.Fabric, "launch", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(DataError, match="no file: look there"):
        fit(configuration(tmp_path, runtime__devices=2, **SHORT))


# --- several processes


@pytest.mark.timeout(300)
def test_two_processes_give_the_bits_of_one(tmp_path, reference, monkeypatch):
    """Although they take over from one process that was interrupted after a round."""
    record = run._Recorder.on_round_end

    def stop(self, federation, row):
        record(self, federation, row)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run._Recorder, "on_round_end", stop)
        fit(configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED))
    path = fit(configuration(tmp_path, runtime__devices=2, **MIXED))
    assert read_record(path)["environment"]["devices"] == 2
    assert_same_run(path, reference)


@pytest.mark.timeout(300)
def test_every_process_fails_with_the_error_of_one(tmp_path, monkeypatch):
    """The record has the traceback of that one, also where another process writes it."""
    (tmp_path / "fails.py").write_text(FAILS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = configuration(tmp_path, **{**SHORT, "method": "fails.Fails", "runtime__devices": 2})
    with pytest.raises(RunError, match=r"Fails, client 5 .*, round 0: KeyError: 'strong'"):
        fit(config)
    error = read_record(folder(config))["error"]
    assert "KeyError: 'strong'" in error and "fails.py" in error and "Connection" not in error


@pytest.mark.timeout(300)
def test_two_processes_share_the_norm_statistics(tmp_path):
    """A server that trains and measures batch-norm statistics, which the processes divide among themselves."""
    small = {"depth": 10, "width": 1}
    server = {"data__scenario": "server", "data__num_labels": 20, "data__pipeline": "randaugment_uniform", "rounds": 2}
    short = {"method__local_epochs": 1, "method__server_pretrain": 0, "roster__participants": 2}
    options = {"method": "fl2", "model": "wrn28_2", "model_args": small, "method__sbn_batch": 300, **server, **short}
    one, two = (fit(configuration(tmp_path / str(n), runtime__devices=n, **options)) for n in (1, 2))
    assert_same_run(two, one)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.timeout(300)
def test_torchrun_on_two_nodes_gives_the_same_record(tmp_path, reference):
    """Two launchers with two processes each, both on this machine, as a user types it (``docs/usage.md``)."""
    options = {**OPTIONS, **MIXED, "results_dir": tmp_path}
    words = [w for k, v in options.items() for w in (f"--{k.removeprefix('runtime.')}", str(v)) if "devices" not in k]
    launcher = [Path(sys.executable).with_name("torchrun"), "--nnodes", "2", "--nproc_per_node", "2"]
    meeting = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{free_port()}", "--rdzv_id", "test"]
    command = [*launcher, *meeting, "-m", "benchmark", "fit", *words, "--devices", "2", "--num_nodes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    nodes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = "".join(node.communicate()[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0]
    path = folder(configuration(tmp_path, **MIXED))
    assert told.count(str(path)) == 1, "one of the processes speaks for all"
    assert read_record(path)["environment"]["num_nodes"] == 2
    assert_same_run(path, reference)


@pytest.mark.timeout(300)
def test_fabric_run_gives_the_same_record(tmp_path, reference):
    """``fabric run --devices 2 benchmark/run.py ...`` as a user types it."""
    launcher = [Path(sys.executable).with_name("fabric"), "run", "--accelerator", "cpu", "--devices", "2"]
    options = {**OPTIONS, **MIXED, "results_dir": tmp_path}
    for name in ("devices", "accelerator"):
        del options[f"runtime.{name}"]
    words = [w for k, v in options.items() for w in (f"--{k.removeprefix('runtime.')}", str(v))]
    done = subprocess.run(
        [*launcher, "--main-port", free_port(), ROOT / "benchmark" / "run.py", *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path = folder(configuration(tmp_path, **MIXED))
    assert done.stdout.count(str(path)) == 1, "one of the processes speaks for all"
    assert read_record(path)["environment"]["devices"] == 2
    assert_same_run(path, reference)


def test_precision_of_fabric_run(tmp_path, monkeypatch):
    """``fabric run --precision`` is part of the run's identity; without it the configuration's counts."""
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    config = configuration(tmp_path, **{**SHORT, "rounds": 1})
    monkeypatch.setattr(run, "_run", lambda fabric, text: made.append((fabric._precision.precision, text)))
    made = []
    fit(replace(config, precision="bf16-mixed"))
    monkeypatch.setenv("LT_PRECISION", "bf16-mixed")
    path = fit(config)
    assert [precision for precision, _ in made] == ["bf16-mixed"] * 2
    assert made[0][1] == made[1][1]
    assert path == folder(replace(config, precision="bf16-mixed"))


# --- where and how


def test_precisions(tmp_path):
    """Double precision is double throughout and agrees with single; bf16 keeps weights in single."""
    weights, paths = {}, set()
    for precision in ("32-true", "64-true", "bf16-mixed"):
        path = fit(configuration(tmp_path, precision=precision, **SHORT))
        weights[precision] = torch.load(path / "weights.pt")
        assert read_record(path)["environment"]["precision"] == precision
        paths.add(path)
    assert len(paths) == 3
    single, double, brain = weights.values()
    assert {v.dtype for v in double.values()} == {torch.float64}
    assert {v.dtype for v in brain.values()} == {torch.float32}
    for name, value in single.items():
        torch.testing.assert_close(value, double[name].float(), rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(value, brain[name], rtol=0.1, atol=1e-2)
    assert any(not torch.equal(value, brain[name]) for name, value in single.items())


def test_auto_places_long_runs_on_all_cores(tmp_path, monkeypatch):
    """One process per core, up to one per participant, for what is worth it; one process otherwise."""
    monkeypatch.setattr(run, "cores", lambda: 8)
    monkeypatch.setattr(run, "idle_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    auto = {"runtime__devices": "auto", "runtime__threads": "auto", "runtime__accelerator": "auto"}

    def where(**options):
        runtime = placed(configuration(tmp_path, method="fedavg", **{**auto, **options}))
        assert runtime.accelerator == "cpu"
        return runtime.devices, runtime.threads

    assert where(rounds=10) == (1, 8)
    assert where(rounds=4_000) == (6, 1)
    assert where(rounds=4_000, roster__participants=2) == (1, 8)
    assert where(rounds=10_000, roster__participants=2) == (2, 4)
    assert where(rounds=10_000, runtime__devices=3) == (3, 2)
    assert where(rounds=10, runtime__threads=5) == (1, 5)
    assert where(rounds=4_000, model="wrn28_2") == (1, 8)
    assert where(rounds=4_000, model="wrn28_2", model_args__depth=10) == (6, 1)
    assert where(rounds=4_000, data__side=224) == (1, 8)
    assert where(rounds=4_000, data__side=224, model="vit_tiny_scratch") == (1, 8)


def test_threads_are_those_that_are_asked_for_or_as_many_as_before_or_the_idle_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "cores", lambda: 8)
    monkeypatch.setattr(run, "idle_cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = configuration(tmp_path, **{**SHORT, "runtime__threads": "auto"})
    several = replace(config, runtime=replace(config.runtime, devices=2))
    asked = replace(config, runtime=replace(config.runtime, threads=5))
    assert [placed(one).threads for one in (config, several, asked)] == [3, 4, 5]
    interrupted(replace(config, runtime=replace(config.runtime, threads=2)), 1)
    assert [placed(one).threads for one in (config, several, asked)] == [2, 4, 5]
    monkeypatch.setenv("OMP_NUM_THREADS", "6,1")
    assert [placed(one).threads for one in (config, several, asked)] == [6, 6, 5]


def test_a_record_says_after_which_round_its_run_would_continue(tmp_path):
    config = configuration(tmp_path, **SHORT)
    assert saved_rounds(folder(config)) == 0
    path = interrupted(config, 1)
    assert saved_rounds(path) == 1 == checkpoint.load(path / run.CHECKPOINT)["round"]
    assert "saved_rounds" not in read_record(fit(config))["timing"]


def test_auto_takes_the_tasks_that_slurm_has_started(tmp_path, monkeypatch):
    """Not more, however large the run; in an interactive job there is nothing but the machine."""
    monkeypatch.setattr(run, "cores", lambda: 8)
    monkeypatch.setattr(run, "idle_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    auto = {"method": "fedavg", "runtime__devices": "auto", "runtime__threads": "auto", "rounds": 4_000}
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    for tasks, nodes, expected in ((1, 1, (1, 8)), (4, 1, (4, 2)), (4, 2, (2, 4)), (1, 2, (1, 8))):
        monkeypatch.setenv("SLURM_NTASKS", str(tasks))
        runtime = placed(configuration(tmp_path, runtime__num_nodes=nodes, **auto))
        assert (runtime.devices, runtime.threads) == expected
    assert placed(configuration(tmp_path, **{**auto, "runtime__devices": 3})).devices == 3
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert placed(configuration(tmp_path, **auto)).devices == 6


# --- a method of one's own


DRIFTING = """
import torch
import torch.distributed as dist

from methods.server_only import ServerOnly


class Drifting(ServerOnly):
    \"""Its server's training rounds a little differently in every process, as on GPUs.\"""

    def server_step(self, server):
        super().server_step(server)
        with torch.no_grad():
            self.model.conv1.weight.mul_(1 + 0.5 * (dist.is_initialized() and dist.get_rank()))
"""


@pytest.mark.timeout(300)
def test_all_processes_go_on_with_the_first_ones_server(tmp_path, monkeypatch):
    """Where devices round differently, they would otherwise evaluate, and send out, different global models."""
    (tmp_path / "drift.py").write_text(DRIFTING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = {"method": "drift.Drifting", "data__scenario": "server", "data__num_labels": 20, "rounds": 2}
    one, two = (fit(configuration(tmp_path / str(n), runtime__devices=n, **options)) for n in (1, 2))
    assert_same_run(two, one)


FAILS = """
from methods.fedavg import FedAvg


class Fails(FedAvg):
    \"""One of its clients asks for what there is not.\"""

    def select_clients(self, round, roster):
        return [list(range(6))]

    def local_work(self, site):
        return {}["strong"] if self.visit.client == 5 else super().local_work(site)
"""


FEDPROX = '''
import copy

import torch.nn.functional as F

from methods.base import FedMethod


class FedProx(FedMethod):
    """FedAvg with a proximal term, as a user would write it in a package of their own."""

    scopes = {"anchor": "local"}

    def __init__(self, model, mu: float, **base):
        super().__init__(model, **base)
        self.anchor = copy.deepcopy(model).requires_grad_(False)

    def plan(self, round, roster):
        return [[client for client in roster.sample(round) if client in roster.labelled]]

    def client_start(self, first):
        self.anchor.load_state_dict(self.model.state_dict())

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
        pairs = zip(self.model.parameters(), self.anchor.parameters(), strict=True)
        return loss + 0.5 * self.hparams["mu"] * sum((w - a).square().sum() for w, a in pairs)
'''


def test_a_method_of_ones_own(tmp_path, monkeypatch):
    """By dotted path and a required argument; mu = 0 is FedAvg, a large mu holds clients near the global model."""
    package = tmp_path / "mylab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "prox.py").write_text(textwrap.dedent(FEDPROX))
    monkeypatch.syspath_prepend(tmp_path)
    options = {**SHORT, "data__labelled_clients": 6, "method__lr": 0.1}
    own = {**options, "method": "mylab.prox.FedProx"}
    average, free, held = (
        fit(configuration(tmp_path / "results", **o))
        for o in (options, {**own, "method__mu": 0.0}, {**own, "method__mu": 5.0})
    )
    assert read_record(free)["method"] == "mylab.prox.FedProx"
    assert len({average, free, held}) == 3
    assert [row["loss"] for row in read_rows(free)] == [row["loss"] for row in read_rows(average)]
    first, same, near = (torch.load(p / "weights.pt") for p in (average, free, held))
    start = run.make(configuration(tmp_path, **own, method__mu=0.0), torch.device("cpu"))[0].tensors("shared")
    assert all(torch.equal(v, first[k]) for k, v in same.items())
    far, close = (sum(float((w[k] - v).square().sum()) for k, v in start.items()) for w in (same, near))
    assert close < 0.5 * far
    with pytest.raises(ConfigError, match=r"method argument 'mu' of FedProx has no default: give --method\.mu"):
        fit(configuration(tmp_path, **own))
    with pytest.raises(ConfigError, match="unknown method argument 'model'"):
        fit(configuration(tmp_path, **own, method__mu=0.1, method__model="mine"))


def test_a_changed_split_is_not_taken_for_the_old_one(tmp_path):
    """A complete run whose partition file was replaced says so instead of showing the old numbers."""
    file, splits = tmp_path / "split.json", []
    for seed in (1, 2):
        data = Digits(num_clients=4, partition_seed=seed)
        data.setup()
        splits.append(data.partition)
    splits[0].save(file)
    options = {**SHORT, "data__partition_file": str(file), "data__num_clients": 4}
    fit(configuration(tmp_path, **options))
    fit(configuration(tmp_path, **options))
    splits[1].save(file)
    with pytest.raises(ConfigError, match=r"split\.json has changed since"):
        fit(configuration(tmp_path, **options))


def test_a_view_that_the_pipeline_lacks_is_missed_before_the_first_round(tmp_path):
    """Also where the method would ask for it only after some rounds."""
    with pytest.raises(ConfigError, match=r"SemiFL needs the view 'strong'.*--data\.pipeline"):
        fit(configuration(tmp_path, method="semifl"))


def test_grey_images_reach_networks_of_one_channel(tmp_path):
    """``data.channels`` sets the network's first layer, too."""
    path = fit(configuration(tmp_path, **SHORT, data__channels=1))
    assert torch.load(path / "weights.pt")["model.conv1.weight"].shape[1] == 1


def test_a_warm_up_that_never_ends_is_said(tmp_path, capsys):
    """The line at the start of a run warns."""
    fit(configuration(tmp_path, method="cbafed", rounds=1))
    assert "ALL 1 rounds lie within the warm-up of 501" in capsys.readouterr().err
