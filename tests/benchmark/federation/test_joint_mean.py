"""Means of uploads that stay where they were made: the ordered mean as the oracle, any order, and what is held."""

import random
import weakref
from dataclasses import replace

import pytest
import torch

from benchmark.federation.collectives import split_tensors
from benchmark.federation.declarations import uploads_needed
from benchmark.federation.joint_mean import JointMean
from benchmark.federation.loop import Federation
from datamodules.common.errors import RunError
from federations import few_data, make_federation, make_method, plain_fabric, run_rows, tiny_federation
from methods.base import FedMethod, Upload, Visit
from methods.fed_consist import FedConsist
from methods.fedavg import FedAvg
from methods.parts.aggregation import weighted_mean
from two_processes import between

# --- means


def uploads_of(seed=0, clients=9):
    """Uploads with float32 tensors of very different sizes, and a counter."""
    draw = torch.Generator().manual_seed(seed)

    def one(client):
        weights = torch.randn(4, 3, generator=draw) * 10.0 ** torch.randint(-30, 31, (4, 3), generator=draw)
        tensors = {"w": weights, "zero": torch.zeros(2), "count": torch.tensor(7 * client + 2**40)}
        return Upload(Visit(client=client, size=1 + client), tensors, weight=float(1 + 13 * client))

    return [one(client) for client in range(clients)]


def joint_mean(uploads, at_once=True):
    """The mean of the uploads, and what was left of them."""
    joint = JointMean(plain_fabric(), at_once)
    joint.begin(uploads[0].tensors, [one.visit for one in uploads])
    left = [joint.for_server(joint.take(replace(upload), upload.weight)) for upload in uploads]
    return weighted_mean([one.tensors for one in left], [one.weight for one in left]), left


@pytest.mark.parametrize("at_once", [True, False])
def test_a_mean_is_the_ordered_one_whatever_comes_first(at_once):
    uploads = uploads_of(1)
    mean, _ = joint_mean(uploads, at_once)
    ordered = weighted_mean([one.tensors for one in uploads], [one.weight for one in uploads])
    assert all(torch.allclose(mean[name], value, rtol=2e-7, atol=0) for name, value in ordered.items())
    assert all(mean[name].dtype == value.dtype for name, value in ordered.items())
    for turn in range(5):
        shuffled = random.Random(turn).sample(uploads, len(uploads))
        other, _ = joint_mean(shuffled, at_once)
        assert all(torch.equal(mean[name], value) for name, value in other.items())


@pytest.mark.parametrize("averaged_before", [False, True])
@pytest.mark.parametrize(("parts", "first"), [(3, 1.0), (9, 2.0)])
def test_parts_and_other_weights_are_refused_after_uploads_were_added_up(averaged_before, parts, first):
    uploads = uploads_of()
    joint = JointMean(plain_fabric(), True)
    joint.begin(uploads[0].tensors, [one.visit for one in uploads])
    states = [joint.for_server(joint.take(upload, upload.weight)).tensors for upload in uploads]
    weights = [upload.weight for upload in uploads]
    if averaged_before:
        weighted_mean(states, weights)
    with pytest.raises(RunError, match=r"Let uploads_needed of the method say 'mean'"):
        weighted_mean(states[:parts], [first, *weights[1:parts]])


def test_the_tensors_of_a_client_cannot_be_read():
    _, left = joint_mean(uploads_of())
    for read in (lambda t: t["w"], list, len, lambda t: t.items().__iter__().__next__()):
        with pytest.raises(RunError, match=r"reads the tensors of client 3.*uploads_needed = 'each'"):
            read(left[3].tensors)


# --- runs

METHODS = ("fedavg", "fed_consist", "semifl", "fedirm", "cbafed")


def tensors_of(run):
    return {name: value.tolist() for name, value in run.server.items()}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_that_with_ordered_sums_but_for_roundings(method):
    ordered, exact = tiny_federation(method), tiny_federation(method, sums="by_rank")
    assert exact.joint is not None and ordered.joint is None
    rows, others = run_rows(ordered), run_rows(exact)
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        assert [row[k] for k in ("bytes_up", "bytes_down", "steps")] == [
            other[k] for k in ("bytes_up", "bytes_down", "steps")
        ]
    for name, value in ordered.server.items():
        assert exact.server[name].dtype == value.dtype
        assert torch.allclose(exact.server[name].double(), value.double(), rtol=1e-3, atol=1e-5), name


def in_slots(method, **engine):
    run = tiny_federation(method, sums="by_rank", **engine)
    return run_rows(run), tensors_of(run)


def test_slots_add_up_to_the_same_bits():
    assert in_slots("fedavg", slots=3) == in_slots("fedavg")


def joint_runs(fabric):
    """Rows, last models and clients' states, of an average that is added up at once and one that waits for weights."""
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


class Diverges(FedAvg):
    """Client 1 uploads something that is not finite in round 1."""

    def make_upload(self, client):
        upload = super().make_upload(client)
        if (client.visit.round, client.visit.client) == (1, 1):
            upload.tensors["model.conv1.bias"][0] = float("inf")
        return upload


def test_or_is_left_out_and_counted():
    ordered, exact = (
        make_federation(Diverges, few_data(3), 2, sums=s, nonfinite="skip") for s in ("ordered", "by_rank")
    )
    rows, others = run_rows(ordered), run_rows(exact)
    counts = ("skipped", "visits", "bytes_up", "steps")
    assert [[row.get(k) for k in counts] for row in rows] == [[row.get(k) for k in counts] for row in others]
    assert others[1]["skipped"] == 1
    for name, value in ordered.server.items():
        assert torch.allclose(exact.server[name], value, atol=1e-6)


# --- what is held


class Watched(FedAvg):
    """Notes how many uploads of clients before are still there, tensors and all, when a client uploads."""

    made: list = []
    alive: list = []

    def make_upload(self, client):
        self.alive.append(sum(one() is not None for one in self.made))
        upload = super().make_upload(client)
        self.made.append(weakref.ref(upload))
        return upload


@pytest.mark.parametrize(("sums", "alive"), [("ordered", [0, 1, 2, 3, 4]), ("by_rank", [0, 0, 0, 0, 0])])
@pytest.mark.parametrize("slots", [None, 1])
def test_uploads_are_not_held_after_they_were_added_up(sums, alive, slots):
    """In either engine; beside the sum there is nothing that grows with the participants."""
    Watched.made, Watched.alive = [], []
    make_federation(Watched, few_data(5), 1, sums=sums, slots=slots).run()
    assert Watched.alive == alive


# --- what methods say


def test_a_class_needs_each_upload_unless_it_says_otherwise():
    class Aggregates(FedAvg):
        def aggregate(self, uploads):
            super().aggregate(uploads)

    class Says(Aggregates):
        uploads_needed = "sum"

        def aggregate(self, uploads):
            super().aggregate(uploads)

    class Weighs(FedMethod):
        def weights(self, uploads):
            return [1.0] * len(uploads)

    class Remembers(Weighs):
        def remember(self, uploads):
            return {}

    found = [uploads_needed(one) for one in (FedMethod, FedAvg, Aggregates, Says, Weighs, Remembers)]
    assert found == ["sum", "sum", "each", "each", "mean", "each"]


def test_a_method_that_says_too_little_is_told():
    class Peeks(FedAvg):
        def aggregate(self, uploads):
            uploads[0].tensors["model.conv1.bias"]

        uploads_needed = "sum"

    with pytest.raises(RunError, match=r"Peeks\.aggregate, round 0: .* client 0"):
        make_federation(Peeks, few_data(2), 1, sums="by_rank").run()
