"""Fixtures for tests of whole runs."""

import pytest

from benchmark.config import Runtime
from benchmark.launch import pool, run
from benchmark.launch.progress import Display
from benchmark.launch.run import fit
from benchmark.runs.states import state
from run_folders import completed
from runs import MIXED, configuration
from toy_suite import SUITE


@pytest.fixture(autouse=True)
def ordinary_memory(monkeypatch):
    """Let the process return freed memory, since it continues after a run."""
    monkeypatch.setenv("FSSL_KEEP_MEMORY", "0")


@pytest.fixture(autouse=True)
def runs_stay_here(monkeypatch):
    """Carry the runs of commands out in this process, by the ``run.fit`` of the moment."""

    def run_all(runs, jobs=None):
        outcomes, display = [], Display(len(runs))
        with display:
            for one in runs:
                display.start(one)
                outcomes.append(pool.RunOutcome(one, *pool.attempt(one, run.fit)))
                display.finish(one, outcomes[-1].status, outcomes[-1].message)
        return outcomes

    monkeypatch.setattr(pool, "run_all", run_all)


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """An uninterrupted run of a method with personal state, in one process."""
    return fit(configuration(tmp_path_factory.mktemp("reference"), **MIXED))


@pytest.fixture
def runtime(tmp_path):
    """One process on the CPU, and results in a folder of the test."""
    return Runtime(results_dir=str(tmp_path / "results"), wandb="off", accelerator="cpu", devices=1, threads=1)


@pytest.fixture
def fitted(monkeypatch):
    """Replace ``run.fit`` by a function that writes a record with a made-up accuracy; yields the runs."""
    runs = []

    def made_up(run):
        seed, last = run.config.seed, run.config.average_last
        runs.append(run)
        if seed == 666:
            raise ZeroDivisionError("seed 666")
        if state(run.folder) == "complete":
            return run.folder
        more = {"recall": 60.0, "bytes_up": 1, "bytes_down": 2}
        rows = [{"acc": min(acc + seed, 100.0), **more} for acc in (50.0, 49.0)]
        return completed(run, *rows, averaged={"rounds": last, "acc": 50.0} if last else None)

    monkeypatch.setattr(run, "fit", made_up)
    return runs


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to a working folder with the toy suite."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(SUITE)
    return tmp_path
