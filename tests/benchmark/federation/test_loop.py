"""The loop: who trains where, what is counted and kept, and symmetries that every federation has."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.federation.loop import assign
from benchmark.registry import KINDS, find_class
from federations import Unaugmented, few_data, make_data, make_federation, run_rows, same_tensors
from methods.base import Stream, Visit

PARAMETERS = 61_906  # of the small network for images of 24 pixels


class Unshuffled(Unaugmented):
    """One full batch in stored order: no random number is left."""

    def streams(self, data):
        return {"labelled": Stream(data.labelled, 1000, {"x": "test"}, {"y": data.labels}, shuffle=False)}


def federation(cls=Unaugmented, clients=4, labelled=None, rounds=2, data=None, **args):
    return make_federation(cls, data or few_data(clients, labelled), rounds, **args)


# --- sharding over ranks


plans = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=30)


@settings(deadline=None)
@given(plans, st.lists(st.integers(0, 500), min_size=9, max_size=9), st.integers(1, 5))
def test_visits_are_dealt_out_whole_and_level(plan, sizes, ranks):
    """Each visit once, a client's visits on one rank in order, and loads at most the largest client apart."""
    visits = [Visit(client=c, cohort=m, size=sizes[c]) for c, m in plan]
    parts = assign(visits, ranks)
    assert len(parts) == ranks
    assert sorted(map(id, visits)) == sorted(id(v) for part in parts for v in part)
    owners = {}
    for rank, part in enumerate(parts):
        positions = [next(i for i, v in enumerate(visits) if v is w) for w in part]
        assert positions == sorted(positions)
        for visit in part:
            assert owners.setdefault(visit.client, rank) == rank
    loads = [sum(max(v.size, 1) for v in part) for part in parts]
    largest = max((sum(max(v.size, 1) for v in visits if v.client == c) for c in owners), default=0)
    assert max(loads) - min(loads) <= largest
    assert assign(visits, ranks) == parts


# --- what a row says


def test_a_row():
    """Every visit costs the network once each way, added up over rounds."""
    first, second = run_rows(federation(clients=3))
    assert set(first) == {
        *("round", "acc", "auc", "precision", "recall", "loss"),
        *("acc_by_class", "acc_clients", "acc_worst_clients"),
        *("participants", "visits", "steps", "bytes_up", "bytes_down"),
    }
    assert (first["round"], first["participants"], first["visits"]) == (0, 3, 3)
    assert first["bytes_up"] == first["bytes_down"] == 3 * 4 * PARAMETERS
    assert second["bytes_up"] == second["bytes_down"] == 2 * first["bytes_up"]


def test_steps_of_clients_and_of_the_server_are_counted():
    """Since the first round, the server's pre-training included."""
    data = few_data(3, 1)
    step_counts = [sum(-(-data.client(k).size // 64) for k in range(3)) * n for n in (1, 2)]
    rows = run_rows(make_federation("fedavg", few_data(3, 3), rounds=2, batch_size=64))
    assert [row["steps"] for row in rows] == step_counts
    server = make_data("server")
    made = make_federation("server_only", server, rounds=2, server_epochs=3, server_pretrain=4, server_batch_size=10)
    epochs = -(-len(server.server.labelled) // 10) * 3
    assert [row["steps"] for row in run_rows(made)] == [(4 + 1) * epochs, (4 + 2) * epochs]


def test_a_round_says_which_classes_and_clients_its_model_serves():
    """As the matrix of the last round's model has it, also beside an averaged model and after a stop at the end."""
    run = federation(clients=3, average_last=2)
    rows = run_rows(run)
    matrix = run.confusion
    share = 100 * matrix.diagonal() / matrix.sum(1)
    assert rows[-1]["acc_by_class"] == pytest.approx(share.tolist(), abs=0.01)
    held = torch.from_numpy(run.data.class_counts("labelled") + run.data.class_counts("unlabelled"))
    clients = (held * share).sum(1) / held.sum(1)
    assert rows[-1]["acc_clients"] == pytest.approx(float(clients.mean()), abs=1e-3)
    assert rows[-1]["acc_worst_clients"] == pytest.approx(float(clients.min()), abs=1e-3)
    again = federation(clients=3, average_last=2)
    again.load_state_dict(run.state_dict())
    again.run()
    assert torch.equal(again.confusion, matrix) and again.averaged == run.averaged


@pytest.mark.parametrize(("every", "evaluated"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (5, [4]), (9, [4])])
def test_evaluation_every_few_rounds_and_after_the_last(every, evaluated):
    """How often it looks changes nothing about what is trained; callbacks hear of every round."""
    heard = []

    class Hears:
        def on_round_end(self, federation, row):
            heard.append((federation.round, row and row["round"]))
            assert (row is None) == (federation.round - 1 not in evaluated)
            assert row is None or row["timing"]["seconds"] >= 0

    run, reference = federation(clients=2, rounds=5), federation(clients=2, rounds=5)
    run.eval_every, run.callbacks = every, [Hears()]
    run.run()
    rows = run_rows(reference)
    assert [row for _, row in heard if row is not None] == evaluated
    assert [number for number, _ in heard] == [1, 2, 3, 4, 5]
    assert same_tensors(run.server, reference.server)
    assert run.bytes_up == rows[-1]["bytes_up"]


# --- plans


def test_a_client_may_come_twice():
    """Both visits start from the same global model; the second continues the client's own state."""

    class Twice(Unaugmented):
        scopes = {"taken": "personal"}

        def __init__(self, model, **base):
            super().__init__(model, **base)
            self.register_buffer("taken", torch.zeros(()))
            self.met = []

        def select_clients(self, round, roster):
            return [[2, 0], [1, 2]]

        def on_train_start(self):
            self.met.append((self.visit.client, self.visit.cohort, self.visit.repeat, self.visit.first))
            self.start = {**getattr(self, "start", {}), len(self.met): self.tensors("shared")}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.taken += 1

        def aggregate(self, uploads):
            self.order = [(u.visit.client, u.visit.repeat) for u in uploads]
            super().aggregate(uploads)

    run = federation(Twice, clients=3, rounds=1)
    (row,) = run_rows(run)
    assert run.method.met == [(2, 0, 0, True), (0, 0, 0, True), (1, 1, 0, True), (2, 1, 1, False)]
    assert run.method.order == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert all(same_tensors(start, run.method.start[1]) for start in run.method.start.values())
    assert [float(run.clients[c].tensors["taken"]) for c in range(3)] == [2, 2, 4]
    assert (row["participants"], row["visits"]) == (3, 4)


def test_a_round_without_participants_changes_nothing():
    """Clients without labels do not train in FedAvg; such a round is still evaluated."""
    run = make_federation("fedavg", few_data(6, 1), rounds=30)
    run.roster.participants = 1
    idle = next(r for r in range(30) if run.roster.sample(r) != [0])
    before = {k: v.clone() for k, v in run.server.items()}
    row = run.run_round(idle)
    assert same_tensors(run.server, before)
    assert row["participants"] == row["bytes_up"] == 0
    assert "loss" not in row


# --- symmetries


def test_a_state_is_a_snapshot():
    """Going on does not change a state taken before, and it can be continued from twice."""
    run = federation(clients=2, rounds=3)
    run.run_round(0)
    run.round = 1
    state = run.state_dict()
    frozen = copy.deepcopy(state)
    rows = run_rows(run)
    for _ in range(2):
        again = federation(clients=2, rounds=3)
        again.load_state_dict(state)
        assert run_rows(again) == rows
        assert same_tensors(again.server, run.server)
    kept, expected = state["clients"][1][1][0][0], frozen["clients"][1][1][0][0]
    assert same_tensors(kept, expected)
    assert same_tensors(state["server"], frozen["server"])


def test_a_resumed_method_is_the_server_when_clients_are_chosen():
    """As it is in a run that nothing interrupts: a rule may look at the model."""

    class Looks(find_class("fedavg", KINDS["method"])):
        def select_clients(self, round, roster):
            seen.append((round, sum(float(p.detach().double().sum()) for p in self.model.parameters())))
            return super().select_clients(round, roster)

    seen = []
    run = make_federation(Looks, few_data(2), rounds=2)
    run_rows(run)
    whole = dict(seen)
    half, rest = (make_federation(Looks, few_data(2), rounds=n) for n in (1, 2))
    run_rows(half)
    rest.load_state_dict(half.state_dict())
    seen.clear()
    run_rows(rest)
    assert dict(seen) == {1: whole[1]}
