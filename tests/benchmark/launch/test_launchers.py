"""Who has started the processes of a run."""

import pytest

from benchmark.launch.launchers import Torchrun, refuse_torchrun, torchrun
from datamodules.common.errors import ConfigError


@pytest.fixture
def four(monkeypatch):
    """The environment of one of two processes on each of two nodes."""
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)


def test_what_torchrun_has_started(four):
    assert torchrun() == Torchrun(local=2, nodes=2)


def test_without_torchrun(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert torchrun() is None
    refuse_torchrun("table")


def test_a_command_that_starts_processes_wants_none_beside_it(four):
    with pytest.raises(ConfigError, match=r"table .*without torchrun"):
        refuse_torchrun("table")
