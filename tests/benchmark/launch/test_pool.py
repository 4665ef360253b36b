"""Many runs at once: every run once, failures and deaths reported, the others unharmed, records kept."""

import importlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmark import ROOT
from benchmark import registry as classes
from benchmark.config import Run, RunConfig, Runtime
from benchmark.launch.placement import default_jobs
from benchmark.launch.pool import LOG, run_all
from benchmark.launch.signals import STOPPED
from benchmark.registry import ClassSpec
from benchmark.runs import folder
from benchmark.runs.environment import cores
from benchmark.runs.lock import run_lock
from benchmark.runs.states import state

FIT = """
import ctypes, os, signal
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
        files.finish()
    return files.path
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


def quiet():
    return Console(file=io.StringIO(), width=200)


def seed_status(outcomes):
    return {outcome.run.config.seed: outcome.status for outcome in outcomes}


def test_every_run_has_its_process_and_survives_failures_and_deaths_of_others(tmp_path, fake, monkeypatch):
    """Whatever a process dies of, an exit with code 0 too, the others go on; each has the command's environment."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OF_THE_COMMAND", "yes")
    runs = planned(tmp_path, 1, 998, 999, 666, 2, 3)
    console = quiet()
    outcomes = run_all(runs, 2, console, fake)
    expected = {1: "complete", 2: "complete", 3: "complete", 666: "failed", 998: "failed", 999: "failed"}
    assert seed_status(outcomes) == expected
    messages = {outcome.run.config.seed: outcome.message for outcome in outcomes}
    assert messages[666].startswith("ZeroDivisionError: seed 666")
    assert "killed by SIGKILL before the run was complete; run the same command again" in messages[999]
    assert "ended with code 0 before the run was complete" in messages[998]
    states = {run.config.seed: state(run.folder) for run in runs}
    assert states == {**expected, 998: "stale", 999: "stale"}
    text = console.file.getvalue()
    assert "[6/6]" in text and "complete 1/A/low1 +1 seed 1" in text and "failed 1/A/low666" in text
    logs = [(run.folder / LOG).read_text().split() for run in runs]
    assert len({log[2] for log in logs} - {str(os.getpid())}) == len(runs)
    assert {(log[3], log[4], log[6]) for log in logs} == {("1", str(max(1, cores() // 2)), "yes")}


def test_runs_at_once_have_gpus_of_their_own(tmp_path, fake, monkeypatch):
    """Of those that this process may use, by their own numbers; or one run per core where there is none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,-1,7")
    runs = planned(tmp_path, *range(1, 5))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    run_all(runs, 2, quiet(), fake)
    logs = [(run.folder / LOG).read_text().split() for run in runs]
    assert {log[5] for log in logs} == {"3", "5"} and len({log[2] for log in logs}) == 4
    assert default_jobs(Runtime()) == 2 and default_jobs(Runtime(accelerator="cpu")) == cores()


def test_a_run_that_another_process_holds_is_busy_and_untouched(tmp_path, fake):
    (run,) = planned(tmp_path, 1)
    with run_lock(run.folder):
        outcomes = run_all([run], 1, quiet(), fake)
    assert seed_status(outcomes) == {1: "busy"} and "is working on this run" in outcomes[0].message
    assert state(run.folder) == "missing"


def test_a_damaged_record_beside_a_checkpoint_does_not_end_the_others(tmp_path, fake):
    """Before anything starts, the threads of an interrupted run are looked up in its record."""
    runs = planned(tmp_path, 1, 2)
    path = runs[0].folder
    path.mkdir(parents=True)
    (path / "checkpoint.pt").write_bytes(b"saved")
    (path / "record.json").write_text("{")
    outcomes = run_all(runs, 2, quiet(), fake)
    assert seed_status(outcomes) == {1: "failed", 2: "complete"}


LONG = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from benchmark.config import Runtime
from benchmark.launch.pool import run_all
from benchmark.launch.signals import STOPPED, stoppable
from datamodules.common.errors import Stopped

class Planned(SimpleNamespace):
    cells = ("x",)
    config = SimpleNamespace(runtime=Runtime(accelerator="cpu"), rounds=1, seed=1, eval_every=1)

    def replace(self, **changes):
        return self

def fit(run):
    here = run.folder
    try:
        (here / "begun").write_text(str(os.getpid()))
        time.sleep(60)
    except BaseException as error:
        time.sleep(0.5)  # it takes its time to save
        (here / "saved").write_text(str(error))
        if here.name == "full":
            raise OSError("No space left on device") from None
        raise

if __name__ == "__main__":
    names = sys.argv[1:]
    runs = [Planned(folder=Path(name), id=name) for name in names]
    try:
        with stoppable():
            run_all(runs if len(runs) > 1 else runs * 2, len(runs), fit="long.fit")
    except KeyboardInterrupt:
        sys.exit(130)
    except Stopped:
        sys.exit(STOPPED)
"""


@pytest.fixture
def long_runs(tmp_path):
    """Starts a program with a long run in each of these folders; returns it and the processes of the runs."""
    (tmp_path / "long.py").write_text(LONG)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', ROOT)}"}

    def started(folders):
        for one in folders:
            one.mkdir()
        command = [sys.executable, str(tmp_path / "long.py"), *map(str, folders)]
        parent = subprocess.Popen(command, env=environment, start_new_session=True)
        begun = []
        while parent.poll() is None and not (len(begun) == len(folders) and all(begun)):
            time.sleep(0.02)
            begun = [file.read_text() for one in folders if (file := one / "begun").exists()]
        return parent, [int(process) for process in begun]

    return started


@pytest.mark.timeout(300)
def test_runs_die_with_their_parent(tmp_path, long_runs):
    parent, runs = long_runs([tmp_path / "a", tmp_path / "b"])
    assert len({parent.pid, *runs}) == 3
    parent.kill()
    parent.wait()
    while any(Path(f"/proc/{run}").exists() for run in runs):
        time.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "names", "to_all"),
    [
        (signal.SIGTERM, ("a", "full"), False),
        (signal.SIGUSR1, ("full",), True),
        (signal.SIGINT, ("a", "b"), True),
    ],
)
def test_runs_are_told_to_stop_and_waited_for(tmp_path, long_runs, number, names, to_all):
    """A signal, to the command alone or to all that it has started, as from a terminal or a scheduler, reaches its
    runs, and it ends when they have saved, or have found that they cannot: no run is begun after that.
    """
    folders = [tmp_path / name for name in names]
    parent, _ = long_runs(folders)
    (os.killpg if to_all else os.kill)(parent.pid, number)
    assert parent.wait() == (130 if number == signal.SIGINT else STOPPED)
    passed_on = signal.SIGTERM if number == signal.SIGINT else signal.Signals(number)
    assert [(one / "saved").read_text() for one in folders] == [f"stopped by {passed_on.name}"] * len(names)
