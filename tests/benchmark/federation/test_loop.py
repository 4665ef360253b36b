"""The loop: who trains where, what the server does, what is counted, averaged and kept, what is refused."""

import csv
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import Fabric
from lightning.fabric.loggers import CSVLogger
from torch import nn

from benchmark.federation.collectives import assign
from benchmark.federation.loop import Federation
from datamodules.common.errors import RunError
from federations import (
    Unaugmented,
    few_data,
    few_federation,
    make_data,
    make_federation,
    make_method,
    run_rows,
    same_server,
    same_tensors,
)
from methods.base import Pass, Visit

federation = partial(few_federation, clients=2)


# --- sharding over ranks


plans = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=30)


@settings(deadline=None)
@given(plans, st.lists(st.integers(0, 500), min_size=9, max_size=9), st.integers(1, 5))
def test_visits_are_dealt_out_whole_and_level(plan, sizes, ranks):
    """Each visit once, a client's visits on one rank in order, and the fullest ahead by its smallest client at most."""
    visits = [Visit(client=c, cohort=m, size=sizes[c]) for c, m in plan]
    parts = assign(visits, ranks)
    assert sorted(map(id, visits)) == sorted(id(v) for part in parts for v in part)
    owners = {}
    for rank, part in enumerate(parts):
        positions = [next(i for i, v in enumerate(visits) if v is w) for w in part]
        assert positions == sorted(positions)
        for visit in part:
            assert owners.setdefault(visit.client, rank) == rank
    loads = [[sum(max(v.size, 1) for v in part if v.client == c) for c in {w.client for w in part}] for part in parts]
    fullest = max(loads, key=sum)
    assert sum(fullest) - min(map(sum, loads)) <= min(fullest, default=0)


# --- what a row says


def test_steps_of_clients_and_of_the_server_are_counted():
    """Since the first round, the server's pre-training included."""
    assert [row["steps"] for row in run_rows(federation(batch_size=64))] == [2 * 2, 4 * 2]  # 125 images each
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


@pytest.mark.parametrize(("every", "evaluated"), [(2, [1, 3, 4]), (9, [4])])
def test_evaluation_every_few_rounds_and_after_the_last(every, evaluated):
    """How often it looks changes nothing about what is trained; callbacks hear of every round."""
    heard = []

    class Hears:
        def on_round_end(self, federation, row):
            heard.append((federation.round, row and row["round"]))

    run, reference = federation(rounds=5), federation(rounds=5)
    run.eval_every, run.callbacks = every, [Hears()]
    run.run()
    rows = run_rows(reference)
    assert heard == [(number + 1, number if number in evaluated else None) for number in range(5)]
    assert same_server(run, reference)
    assert run.bytes_up == rows[-1]["bytes_up"]


def test_a_round_without_participants_changes_nothing():
    """It is still evaluated."""

    class Rests(Unaugmented):
        def select_clients(self, round, roster):
            return [[]]

    run = federation(Rests)
    before = {k: v.clone() for k, v in run.server.items()}
    row = run.run_round(0)
    assert same_tensors(run.server, before)
    assert row["participants"] == row["bytes_up"] == 0
    assert "loss" not in row


def test_a_state_is_a_snapshot():
    """Going on does not change a state taken before, and it can be continued from twice."""
    run = federation(rounds=3)
    run.run_round(0)
    run.round = 1
    state = run.state_dict()
    rows = run_rows(run)
    for _ in range(2):
        again = federation(rounds=3)
        again.load_state_dict(state)
        assert run_rows(again) == rows
        assert same_server(again, run)


def test_rounds_reach_the_loggers_of_fabric_which_are_closed(tmp_path, monkeypatch):
    fabric = Fabric(accelerator="cpu", devices=1, loggers=[CSVLogger(tmp_path, flush_logs_every_n_steps=1000)])
    ended = []
    monkeypatch.setattr(fabric.logger, "finalize", ended.append)
    fabric.launch()
    data = few_data(2)
    rows = run_rows(Federation(make_method(Unaugmented), data, data.roster(0), fabric, rounds=2, seed=0))
    (file,) = tmp_path.rglob("metrics.csv")
    logged = list(csv.DictReader(file.open()))
    assert [(int(row["step"]), float(row["acc"])) for row in logged] == [(row["round"], row["acc"]) for row in rows]
    assert ended == ["success"]


# --- the averaged model


def test_what_is_averaged_and_what_it_leaves_alone():
    """One round is the last one, and a short run is averaged whole; the server stays that of the last round."""
    one, two, nine = (federation(average_last=last) for last in (1, 2, 9))
    rows = [run_rows(run) for run in (one, two, nine)]
    assert one.averaged == {"rounds": 1, **{name: rows[0][-1][name] for name in one.averaged if name != "rounds"}}
    assert two.averaged == nine.averaged != {**one.averaged, "rounds": 2}
    for run in (two, nine):
        assert same_server(run, one)
        assert same_tensors({name: run.method.registered()[name] for name in run.server}, one.server)


# --- the server


class ServerTrains(Unaugmented):
    """Clients do nothing; the server trains on its labels before and in every round."""

    scenario = "server"

    def make_upload(self, client):
        return None

    def server_step(self, server):
        steps = server.fit([Pass(self.streams(server.data))] * (2 if server.visit.before_first_round else 1))
        self.steps = [*getattr(self, "steps", []), steps]


def test_the_server_trains_and_keeps_its_momentum():
    """As plain SGD over 2 + 3 passes would, momentum carried along."""
    whole = make_federation(ServerTrains, rounds=3)
    rows = run_rows(whole)
    assert whole.method.steps == [2, 1, 1, 1]  # 40 labels, a batch of 64
    assert rows[-1]["bytes_up"] == 0
    assert [row["server/loss"] for row in rows] == sorted((r["server/loss"] for r in rows), reverse=True)

    data, site = whole.data, whole.data.server
    model = make_federation(ServerTrains, data).method.model
    optimizer = torch.optim.SGD(model.parameters(), 0.03, 0.9, weight_decay=5e-4, fused=True)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.take("test", site.labelled)), site.labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(whole.server[f"model.{name}"], value, rtol=1e-4, atol=1e-6)


class LogsAtTheServer(Unaugmented):
    """The server logs when it has averaged, and in its step."""

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.log("weight", sum(upload.weight for upload in uploads))
        self.log("both", 1.0)
        assert self.tallied("both") == 1.0

    def server_step(self, server):
        self.log("both", 2.0)


def test_what_the_server_logs_is_in_the_row():
    """A name that both hooks log has the mean of them."""
    rows = run_rows(federation(LogsAtTheServer))
    assert [row["server/weight"] for row in rows] == [250, 250]
    assert [row["server/both"] for row in rows] == [1.5, 1.5]


def test_what_hooks_draw_outside_visits_is_the_same_after_an_interruption():
    """Noise at the server comes from a stream of the round, not from wherever torch's generator stands."""

    class Noisy(Unaugmented):
        def aggregate(self, uploads):
            super().aggregate(uploads)
            with torch.no_grad():
                self.model.conv1.weight.add_(1e-2 * torch.randn_like(self.model.conv1.weight))

    whole, half, rest = (federation(Noisy, rounds=n) for n in (2, 1, 2))
    whole.run()
    half.run()
    rest.load_state_dict(half.state_dict())
    torch.manual_seed(99)
    rest.run()
    assert same_server(whole, rest)


CLIENTS = ["fedavg", "fed_consist", "rscfed", "fedirm", "cbafed", "local_ssl", "feddure"]
SERVERS = ["fedcon", "server_only"]


@pytest.mark.parametrize("name", [*CLIENTS, *SERVERS])
def test_training_on_labels_that_nobody_has_is_refused(name):
    """A record of chasing a network that has learnt nothing would look like a result."""
    told = "no client holds labels" if name in CLIENTS else "the server has no labels to train on"
    scenario = "server" if name in CLIENTS else "all_clients"
    data = make_data(scenario, pipeline="randaugment_levels_cutout")
    with pytest.raises(RunError, match=told):
        make_federation(name, data, **{"warmup_rounds": 0} if name == "cbafed" else {}).run()
