"""Fixtures for tests of processes."""

import pytest
from lightning.fabric.strategies import DDPStrategy

from benchmark.launch import run
from two_processes import forks


@pytest.fixture
def runs_stay_here():
    """They have processes of their own, which is what these tests are about."""


@pytest.fixture
def quick_processes(monkeypatch):
    """Processes of a run are forks: a fresh one takes longer than these runs."""

    def forked(**options):
        return DDPStrategy(**{**options, "start_method": "forkserver"})

    forks()
    monkeypatch.setattr(run, "DDPStrategy", forked)
