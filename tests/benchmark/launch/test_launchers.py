"""Who has started the processes of a run."""

import pytest

from benchmark.config import Runtime
from benchmark.launch.launchers import Torchrun, refuse_torchrun, torchrun, within
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


@pytest.mark.parametrize("asked", [{}, {"devices": 2}, {"num_nodes": 2}, {"devices": 2, "num_nodes": 2}])
def test_a_run_takes_what_there_is(asked):
    taken = within(Runtime(**asked), Torchrun(2, 2))
    assert (taken.devices, taken.num_nodes) == (2, 2)


@pytest.mark.parametrize("asked", [{"devices": 4}, {"devices": 1}, {"num_nodes": 3}])
def test_another_number_is_refused_with_the_command_for_it(asked):
    with pytest.raises(ConfigError, match=r"torchrun has started 2 processes on each of 2 nodes: .*--nproc_per_node"):
        within(Runtime(**asked), Torchrun(2, 2))


def test_a_command_that_starts_processes_wants_none_beside_it(four):
    with pytest.raises(ConfigError, match=r"table .*without torchrun"):
        refuse_torchrun("table")
