"""Means of uploads that stay where they were made: the ordered mean as the oracle, and what methods say they need."""

import pytest
import torch

from benchmark.federation.collectives import split_tensors
from benchmark.federation.hooks import uploads_needed
from benchmark.federation.loop import Federation
from datamodules.common.errors import RunError
from federations import few_data, make_federation, make_method, plain_fabric, run_rows, tiny_federation
from methods.base import FedMethod
from methods.fed_consist import FedConsist
from methods.fedavg import FedAvg
from methods.parts.aggregation import weighted_mean
from two_processes import between


def tensors_of(run):
    return {name: value.tolist() for name, value in run.server.items()}


@pytest.mark.parametrize("method", ["fedavg", "semifl", "fedirm", "cbafed"])
def test_a_run_is_that_with_ordered_sums_but_for_roundings(method):
    ordered, joint, slots = (
        tiny_federation(method, **engine) for engine in ({}, {"sums": "by_rank"}, {"sums": "by_rank", "slots": 3})
    )
    assert joint.joins_sums and not ordered.joins_sums
    rows, others = run_rows(ordered), run_rows(joint)
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        assert [row[k] for k in ("bytes_up", "steps")] == [other[k] for k in ("bytes_up", "steps")]
    for name, value in ordered.server.items():
        assert joint.server[name].dtype == value.dtype
        assert torch.allclose(joint.server[name].double(), value.double(), rtol=1e-3, atol=1e-5), name
    assert run_rows(slots) == others and tensors_of(slots) == tensors_of(joint)


def joint_runs(fabric):
    """Rows, last models and clients' states, where weights are numbers of images and where they depend on others."""
    found = []
    for method in (FedAvg, FedConsist):
        data = few_data(9, 9 if method is FedAvg else 2)
        run = Federation(make_method(method), data, data.roster(0), fabric, rounds=2, seed=0, sums="by_rank")
        rows = run_rows(run)
        states = {k: [t.double().sum().item() for t in split_tensors(run.clients[k])[1]] for k in sorted(run.clients)}
        assert all(len(own) >= len(list(run.method.model.parameters())) for own in states.values())  # momenta
        found.append((rows, tensors_of(run), states))
    return found


@pytest.mark.timeout(300)
def test_a_number_of_processes_gives_the_same_bits_and_another_one_rounds_differently():
    """With nine clients: processes have different numbers of them, and one of two sends its states in two messages."""
    alone = joint_runs(plain_fabric())
    found = between(2, joint_runs)
    assert found == between(2, joint_runs) and found[0] == found[1]
    for (rows, server, states), (_, expected, kept) in zip(found[0], alone, strict=True):
        assert len(rows) == 2 and states.keys() == kept.keys()
        for name, value in server.items():
            assert torch.allclose(torch.tensor(value), torch.tensor(expected[name]), rtol=1e-3, atol=1e-5), name


class Peeks(FedAvg):
    """Reads one upload, and says that it needs the mean."""

    uploads_needed = "mean"

    def aggregate(self, uploads):
        uploads[0].tensors["model.conv1.bias"]


class Twice(Peeks):
    """Averages an upload with itself."""

    def aggregate(self, uploads):
        self.load_tensors(weighted_mean([uploads[0].tensors] * 2, [1.0, 1.0]))

    uploads_needed = "mean"


@pytest.mark.parametrize(("cls", "told"), [(Peeks, "client 0.*uploads_needed"), (Twice, "averaged twice")])
def test_a_method_that_needs_more_than_the_mean_is_told(cls, told):
    with pytest.raises(RunError, match=rf"{cls.__name__}\.aggregate, round 0: .*{told}"):
        make_federation(cls, few_data(2), 1, sums="by_rank").run()


def test_a_class_needs_each_upload_unless_it_says_otherwise():
    class Aggregates(FedAvg):
        def aggregate(self, uploads):
            super().aggregate(uploads)

    class Says(Aggregates):
        uploads_needed = "mean"

    class Remembers(FedMethod):
        def remember(self, uploads):
            return {}

    found = [uploads_needed(one) for one in (FedMethod, FedAvg, Peeks, Aggregates, Says, Remembers)]
    assert found == ["mean", "mean", "mean", "each", "each", "each"]
