"""Fixtures for tests of processes."""

import multiprocessing

import pytest
from lightning.fabric.strategies import DDPStrategy

from benchmark import run


@pytest.fixture
def quick_processes(monkeypatch):
    """Processes of a run are forks of one that has imported everything: a fresh one takes longer than these runs."""

    def forked(**options):
        return DDPStrategy(**{**options, "start_method": "forkserver"})

    multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmark.run", "benchmark.launch.worker"])
    monkeypatch.setattr(run, "DDPStrategy", forked)
