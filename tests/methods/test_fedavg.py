"""FedAvg: who takes part, how much clients weigh, and what its residual connection (FedAvg+) mixes."""

import pytest
from torch import nn

from datamodules.partition.roster import Roster
from federations import make_method
from methods.base import Upload, Visit
from methods.parts.labelled_clients import residual_connection


def test_participants_with_labels_train() -> None:
    roster = Roster(100, tuple(range(0, 100, 2)), participants=10)
    assert make_method("fedavg").select_clients(3, roster) == [[c for c in roster.sample(3) if c % 2 == 0]]


def test_clients_weigh_by_size_or_alike() -> None:
    uploads = [Upload(Visit(), {}, size) for size in (83.0, 20.0, 83.0)]
    assert make_method("fedavg").weights(uploads) == [83.0, 20.0, 83.0]
    assert make_method("fedavg", aggregation="uniform").weights(uploads) == [1.0, 1.0, 1.0]


def test_everything_is_mixed_and_counters_are_truncated() -> None:
    """Weights, statistics and counters; the reference becomes the mix."""
    reference, model = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for module, value in ((reference, 1.0), (model, 6.0)):
        for tensor in module.state_dict().values():
            tensor.fill_(value)
    residual_connection(reference, model, 5, 0.7, 5)
    for mixed in (model, reference):
        state = {name: float(tensor) for name, tensor in mixed.state_dict().items()}
        assert state.pop("num_batches_tracked") == 2
        assert list(state.values()) == pytest.approx([2.5] * 4)
