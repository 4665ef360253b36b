"""Processes that die or are told to stop, and what follows."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from lightning.fabric.strategies import DDPStrategy

from benchmark.federation.checkpoint import Checkpoint
from benchmark.launch import run
from benchmark.launch.recorder import CHECKPOINT
from benchmark.launch.run import fit
from benchmark.launch.signals import STOPPED
from benchmark.runs.records import read_record, read_rows
from benchmark.runs.states import CHECKPOINTS, saved_rounds, state
from runs import MIXED, ROUNDS, assert_same_run, configuration
from two_processes import forks

LONG = {**MIXED, "method": "slow_consist.SlowConsist"}
"""Rounds that last long enough to be met by a signal."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run that nothing interrupts."""
    return fit(configuration(tmp_path_factory.mktemp("reference"), **LONG))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("memory", "sums"), [("auto", "ordered"), (0.0, "by_rank")])
def test_kills_at_random_moments_leave_no_trace(tmp_path, reference, memory, sums):
    """SIGKILL while starting, training, writing rows or checkpoints: the resumed run is the uninterrupted one.

    With the clients' states in memory and ordered sums, and with states in files and sums by rank.
    """
    options = {**LONG, "sums": sums, "runtime__client_memory": memory}
    whole = reference if sums == "ordered" else fit(configuration(tmp_path / "whole", **options))
    rng = random.Random(0)
    config = configuration(tmp_path, **options)
    path, filed = config.folder, set()
    pace = max(0.02, read_record(reference)["timing"]["seconds"] / ROUNDS)
    kills = []
    for starting, every_s in ((True, 0.0), (False, 0.0), (False, 1e9), (False, 0.0)):
        runtime = replace(config.config.runtime, checkpoint_every_s=every_s)
        process = forks().Process(target=fit, args=(config.replace(runtime=runtime),))
        process.start()
        last = count = len(read_rows(path))
        while not (starting or (count > last and (path / CHECKPOINT).exists())) and process.is_alive():
            time.sleep(0.002)
            last, count = min(last, count), len(read_rows(path))
        time.sleep(rng.uniform(0.0, 0.5) * pace)
        filed |= set(path.glob("states.*/*"))
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        kills.append(len(read_rows(path)))
        assert state(path) in ("missing", "stale")
        assert starting or any((path / name).exists() for name in CHECKPOINTS)
    (path / ".record.json.4711.tmp").write_text("half")  # as a kill inside a write leaves
    assert len(kills) >= 3 and kills[1] >= 1, "the runs ended before they were killed"
    assert_same_run(fit(config), whole)
    assert bool(filed) == (memory == 0) and not list(path.glob("states.*"))


def with_forks(config):
    """A run whose processes are forks: fresh ones import for longer than they run."""
    run.DDPStrategy = lambda **options: DDPStrategy(**{**options, "start_method": "fork"})
    fit(config)


def started(config, rows, work=fit):
    """A process that works on a run, which has so many rows by now."""
    process, path = forks().Process(target=work, args=(config,)), config.folder
    process.start()
    while process.is_alive() and len(read_rows(path)) < rows:
        time.sleep(0.005)
    return process


def alive(pid):
    """Whether a process goes on; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ranks(process):
    """Processes of a run, by rank, be they fresh or forks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(int(pid) for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes())


def assert_no_orphans(pids):
    """The processes end within seconds."""
    deadline = time.monotonic() + 20
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.timeout(300)
def test_a_signal_saves_the_end_of_the_last_round(tmp_path, reference):
    """Although checkpoints are hours apart: the code says so, and the next start goes on exactly there."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=1e9, **LONG)
    path = config.folder
    for number, rows in ((signal.SIGTERM, 2), (signal.SIGUSR1, 5)):
        process = started(config, rows)
        os.kill(process.pid, number)
        process.join()
        assert process.exitcode == STOPPED
        assert state(path) == "stale" and read_record(path)["error"] is None
        done = len(read_rows(path))
        assert rows <= done < ROUNDS, "the run ended before it was stopped"
        assert Checkpoint(path / CHECKPOINT).load()["round"] == saved_rounds(path)
        assert done - saved_rounds(path) in (0, 1), "1: the signal came while the row was being written"
    assert_same_run(fit(config), reference)


@pytest.mark.timeout(300)
def test_the_processes_of_a_run_end_together_and_it_goes_on(tmp_path, reference):
    """One of two is killed, then the one that started them is interrupted alone: no orphan, and the same bits."""
    config = configuration(tmp_path, runtime__devices=2, runtime__checkpoint_every_s=0, **LONG)
    path = config.folder
    process = started(config, 2, with_forks)
    pids = ranks(process)
    assert len(pids) == 2
    os.kill(pids[-1], signal.SIGKILL)
    began = time.monotonic()
    process.join()
    assert process.exitcode == 1 and time.monotonic() - began < 20
    assert_no_orphans(pids)
    assert state(path) == "failed"
    assert "terminated with signal SIGKILL; the same command (without --overwrite)" in read_record(path)["error"]
    done = saved_rounds(path)
    assert 0 < done < ROUNDS

    process = started(config, len(read_rows(path)) + 2)  # the signal may come before the last of them is saved
    pids = ranks(process)
    assert len(pids) == 2
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert_no_orphans(pids)
    assert state(path) == "stale" and done < saved_rounds(path) < ROUNDS
    assert_same_run(fit(configuration(tmp_path, **LONG)), reference)
