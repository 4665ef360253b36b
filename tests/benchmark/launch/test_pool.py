"""Many runs at once: every run once, failures and deaths reported, the others unharmed, records kept."""

import importlib
import os
import signal
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from benchmark import registry as classes
from benchmark.config import Run, RunConfig, Runtime
from benchmark.launch import pool
from benchmark.launch.placement import default_jobs
from benchmark.launch.pool import LOG, run_all
from benchmark.launch.signals import STOPPED, stoppable
from benchmark.registry import ClassSpec
from benchmark.runs import folder
from benchmark.runs.environment import cores
from benchmark.runs.lock import holder, run_lock
from benchmark.runs.states import state
from datamodules.common.errors import Stopped
from two_processes import forks

FIT = """
import ctypes, os, signal, time
from benchmark import registry as classes
from benchmark.runs import folder
from benchmark.registry import Kind
from benchmark.runs.folder import RunFolder

class Base: revision = 1
class Method(Base): pass
class Data(Base): pass

KINDS = {name: Kind(name, "fake_runs", "fake_runs.Base", "fake_runs") for name in ("method", "data")}
classes.KINDS.update(KINDS)  # light classes
folder.environment = dict

def fit(run):
    files, config = RunFolder(run.folder), run.config
    with files.lock():
        files.open(run, {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": []})
        files.rewind(0)
        print("hello from", os.getpid(), config.runtime.devices, config.runtime.threads,
              os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OF_THE_COMMAND"), flush=True)
        if config.seed == 666:
            raise ZeroDivisionError("seed 666 " + 100_000 * "!")
        if config.seed == 998:
            ctypes.CDLL(None)._exit(0)  # past everything that Python could do about it
        if config.seed == 999:
            os.kill(os.getpid(), signal.SIGKILL)
        for number in range(config.rounds):
            files.append({"round": number, "acc": 10.0 + config.seed})
            if config.seed > 1000:
                wait(files.path, full=config.seed == 1002)
        files.finish()
    return files.path

def wait(folder, full):
    try:
        (folder / "begun").touch()
        time.sleep(60)
    except BaseException as error:
        time.sleep(0.5)  # it takes its time to save
        (folder / "saved").write_text(str(error))
        if full:
            raise OSError("No space left on device") from None
        raise
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Dotted path of a run function, with light classes, that other processes can import too."""
    (tmp_path / "fake_runs.py").write_text(FIT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("benchmark.runs.folder.environment", folder.environment)
    for slot, kind in classes.KINDS.items():
        monkeypatch.setitem(classes.KINDS, slot, kind)
    importlib.import_module("fake_runs")
    return "fake_runs.fit"


def planned(tmp_path, *seeds):
    runs = []
    for seed in seeds:
        spec = ClassSpec("fake_runs.Method"), ClassSpec("fake_runs.Data")
        config = RunConfig(*spec, rounds=2, seed=seed, runtime=Runtime(results_dir=str(tmp_path / "r")))
        runs.append(Run.of(config, f"1/A/low{seed}", "2/A/low"))
    return runs


def seed_status(outcomes):
    return {outcome.run.config.seed: outcome.status for outcome in outcomes}


def test_every_run_has_its_process_and_survives_failures_and_deaths_of_others(tmp_path, fake, monkeypatch, capsys):
    """Whatever a process dies of, an exit with code 0 too, the others go on; each has the command's environment."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OF_THE_COMMAND", "yes")
    runs = planned(tmp_path, 1, 998, 999, 666, 2, 3)
    outcomes = run_all(runs, 2, fake)
    expected = {1: "complete", 2: "complete", 3: "complete", 666: "failed", 998: "failed", 999: "failed"}
    assert seed_status(outcomes) == expected
    messages = {outcome.run.config.seed: outcome.message for outcome in outcomes}
    assert messages[666].startswith("ZeroDivisionError: seed 666")
    assert "killed by SIGKILL before the run was complete; run the same command again" in messages[999]
    assert "ended with code 0 before the run was complete" in messages[998]
    states = {run.config.seed: state(run.folder) for run in runs}
    assert states == {**expected, 998: "stale", 999: "stale"}
    text = capsys.readouterr().err
    assert "[6/6]" in text and "complete 1/A/low1 +1 seed 1" in text and "failed 1/A/low666" in text
    logs = [(run.folder / LOG).read_text().split() for run in runs]
    assert len({log[2] for log in logs} - {str(os.getpid())}) == len(runs)
    assert {(log[3], log[4], log[6]) for log in logs} == {("1", str(max(1, cores() // 2)), "yes")}


@pytest.mark.parametrize("jobs", [1, None])
def test_what_a_run_prints_goes_to_its_folder_where_jobs_are_given(tmp_path, fake, jobs):
    """With one at a time, too; runs without a number of jobs speak for themselves."""
    (run,) = planned(tmp_path, 1)
    assert seed_status(run_all([run], jobs, fake)) == {1: "complete"}
    assert (run.folder / LOG).exists() is (jobs is not None)


def test_runs_at_once_have_gpus_of_their_own(tmp_path, fake, monkeypatch):
    """Of those that this process may use, by their own numbers; or one run per core where there is none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,-1,7")
    runs = planned(tmp_path, *range(1, 5))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    run_all(runs, 2, fake)
    logs = [(run.folder / LOG).read_text().split() for run in runs]
    assert {log[5] for log in logs} == {"3", "5"} and len({log[2] for log in logs}) == 4
    assert default_jobs(Runtime()) == 2 and default_jobs(Runtime(accelerator="cpu")) == cores()


def test_a_run_that_another_process_holds_and_one_with_a_damaged_record_are_left_alone(tmp_path, fake):
    """They do not end the others. Before any starts, the threads of an interrupted run are looked up in its record."""
    busy, damaged, _ = runs = planned(tmp_path, 1, 2, 3)
    damaged.folder.mkdir(parents=True)
    (damaged.folder / "checkpoint.pt").write_bytes(b"saved")
    (damaged.folder / "record.json").write_text("{")
    with run_lock(busy.folder):
        outcomes = run_all(runs, 2, fake)
    assert seed_status(outcomes) == {1: "busy", 2: "failed", 3: "complete"}
    assert any("is working on this run" in outcome.message for outcome in outcomes)
    assert (state(busy.folder), state(damaged.folder)) == ("missing", "damaged")


def command(runs, jobs):
    """The whole of a command with many runs, in a process and a session of its own."""
    os.setsid()
    importlib.import_module("fake_runs")
    pool.IMPORTED = ()  # which these runs do not need
    resource_tracker._resource_tracker._fd = None  # a new command has none yet
    try:
        with open(f"{runs[0].config.runtime.results_dir}.told", "w") as sys.stderr, stoppable():
            run_all(runs, jobs, "fake_runs.fit")
    except KeyboardInterrupt:
        sys.exit(130)
    except Stopped:
        sys.exit(STOPPED)


def started(runs, jobs):
    """A process with a command whose first runs have begun."""
    process = forks().Process(target=command, args=(runs, jobs))
    process.start()
    while process.is_alive() and not all((run.folder / "begun").exists() for run in runs[:jobs]):
        time.sleep(0.02)
    return process


@pytest.mark.timeout(300)
def test_runs_die_with_their_parent(tmp_path, fake):
    runs = planned(tmp_path, 1001, 1003)
    process = started(runs, 2)
    pids = {holder(run.folder)["pid"] for run in runs}
    assert len({process.pid, *pids}) == 3
    process.kill()
    process.join()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "seeds", "jobs", "to_all"),
    [
        (signal.SIGTERM, (1001, 1002), 2, True),
        (signal.SIGUSR1, (1002, 1003), 1, False),
        (signal.SIGINT, (1001, 1003), 2, True),
    ],
)
def test_runs_are_told_to_stop_and_waited_for(tmp_path, fake, number, seeds, jobs, to_all):
    """A signal, to the command alone or to all that it has started, as from a terminal or a scheduler, reaches its
    runs, and it ends when they have saved, or have found that they cannot: no run is begun after that.
    """
    runs = planned(tmp_path, *seeds)
    process = started(runs, jobs)
    (os.killpg if to_all else os.kill)(process.pid, number)
    process.join()
    assert process.exitcode == (130 if number == signal.SIGINT else STOPPED)
    passed_on = signal.SIGTERM if number == signal.SIGINT else number
    assert [(run.folder / "saved").read_text() for run in runs[:jobs]] == [f"stopped by {passed_on.name}"] * jobs
    assert not any(run.folder.exists() for run in runs[jobs:])
    assert f"0 of {len(seeds)} runs have ended" in (tmp_path / "r.told").read_text()
