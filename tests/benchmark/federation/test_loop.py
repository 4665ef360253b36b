"""The loop: who trains where, what is counted and kept, and symmetries that every federation has."""

import copy
import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.loop import Federation, assign
from benchmark.registry import KINDS, find_class
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common.errors import ConfigError, RunError
from datamodules.io.sources import Arrays
from datamodules.partition.partition import Partition
from federations import SIDE, few_data, make_data, make_federation, make_method, plain_fabric, run_rows
from methods.base import FedMethod, Pass, Stream, Upload, Visit
from two_processes import between_two

PARAMETERS = 61_906  # of the small network for images of 24 pixels


class Everybody(FedMethod):
    """Cross-entropy on images that are not augmented."""

    views = {"labelled": {"x": "test"}}

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class Unshuffled(Everybody):
    """One full batch in stored order: no random number is left."""

    def streams(self, data):
        return {"labelled": Stream(data.labelled, 1000, {"x": "test"}, {"y": data.labels}, shuffle=False)}


def federation(cls=Everybody, clients=4, labelled=None, rounds=2, data=None, **args):
    return make_federation(cls, data or few_data(clients, labelled), rounds, **args)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


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


def test_equal_clients_are_dealt_out_evenly():
    parts = assign([Visit(client=c, size=100) for c in range(10)], 4)
    assert sorted(len(part) for part in parts) == [2, 2, 3, 3]


# --- what a row says


def test_bytes_are_those_of_the_tensors():
    """Every visit costs the network once each way, added up over rounds."""
    first, second = run_rows(federation(clients=3))
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


def test_statistics_count_as_bytes():
    """A relation matrix goes down to everybody, and up from clients with labels."""
    data = few_data(3, 1)
    (row,) = run_rows(make_federation("fedirm", data, rounds=1, warmup_rounds=0))
    assert row["bytes_down"] == 3 * 4 * (PARAMETERS + 100)
    assert row["bytes_up"] == 3 * 4 * PARAMETERS + 4 * 100


def test_a_row():
    row = run_rows(federation())[0]
    assert set(row) == {
        *("round", "acc", "auc", "precision", "recall", "loss"),
        *("acc_by_class", "acc_clients", "acc_worst_clients"),
        *("participants", "visits", "steps", "bytes_up", "bytes_down"),
    }
    assert (row["round"], row["participants"], row["visits"]) == (0, 4, 4)


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
    assert equal(run.server, reference.server)
    assert run.bytes_up == rows[-1]["bytes_up"]


def test_evaluating_is_repeatable_and_harmless():
    run, reference = federation(clients=2), federation(clients=2)
    run.run_round(0)
    reference.run_round(0)
    assert run.evaluate() == run.evaluate()
    assert run.method.training
    assert run.run_round(1) == reference.run_round(1)


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"rounds": 1, "eval_every": 0}])
def test_no_rounds(bad):
    run = federation()
    with pytest.raises(ConfigError, match="at least 1"):
        Federation(run.method, run.data, run.roster, run.fabric, **{"seed": 0, **bad})


# --- plans


def test_a_client_may_come_twice():
    """Both visits start from the same global model; the second continues the client's own state."""

    class Twice(Everybody):
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
    assert all(equal(start, run.method.start[1]) for start in run.method.start.values())
    assert [float(run.clients[c].tensors["taken"]) for c in range(3)] == [2, 2, 4]
    assert (row["participants"], row["visits"]) == (3, 4)


def test_a_round_without_participants_changes_nothing():
    """Clients without labels do not train in FedAvg; such a round is still evaluated."""
    run = make_federation("fedavg", few_data(6, 1), rounds=30)
    run.roster.participants = 1
    idle = next(r for r in range(30) if run.roster.sample(r) != [0])
    before = {k: v.clone() for k, v in run.server.items()}
    row = run.run_round(idle)
    assert equal(run.server, before)
    assert row["participants"] == row["bytes_up"] == 0
    assert "loss" not in row


@pytest.mark.parametrize("client", [-1, 4])
def test_a_plan_with_a_client_that_does_not_exist(client):
    class Plans(Everybody):
        def select_clients(self, round, roster):
            return [[0, client]]

    with pytest.raises(
        RunError, match=rf"Plans\.select_clients, round 0: there is no client {client}; ids run from 0 to 3"
    ):
        federation(Plans).run()


# --- symmetries


def test_names_of_clients_do_not_matter():
    """The same clients under other ids give the same model, up to the order of summation."""
    data, turned = few_data(4), few_data(4)
    site = data.clients[0]
    data.clients[0] = SiteData(site.labelled[:20], site.labels[:20], site.unlabelled)
    for client, site in enumerate(data.clients[::-1]):
        turned.clients[client] = site
    runs = [federation(Unshuffled, data=d, rounds=3, precision="64-true") for d in (data, turned)]
    for run in runs:
        run_rows(run)
    for name, value in runs[0].server.items():
        torch.testing.assert_close(runs[1].server[name], value, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("count", [2, 3])
def test_identical_clients_are_one_client(count):
    """k clients that hold the same images return the model of one, bit for bit."""
    one, many = few_data(4), few_data(4)
    for client in range(count):
        many.clients[client] = many.clients[0]
    runs = [federation(Unshuffled, data=data) for data in (one, many)]
    for run, clients in zip(runs, (1, count), strict=True):
        run.roster.num_clients = clients
        run_rows(run)
    assert equal(runs[0].server, runs[1].server)


def test_a_client_without_images_does_not_pull():
    data, reference = few_data(4), few_data(4)
    site = data.clients[3]
    data.clients[3] = SiteData(site.labelled[:0], site.labels[:0], site.unlabelled)
    runs = [federation(data=d) for d in (data, reference)]
    runs[1].roster.num_clients = 3
    rows = [run_rows(run) for run in runs]
    assert equal(runs[0].server, runs[1].server)
    assert [r["acc"] for r in rows[0]] == [r["acc"] for r in rows[1]]


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
        assert equal(again.server, run.server)
    kept, expected = state["clients"][1][1][0][0], frozen["clients"][1][1][0][0]
    assert equal(kept, expected)
    assert equal(state["server"], frozen["server"])


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


# --- a shared optimiser


class HandsOn(Everybody):
    """One optimiser state for all clients."""

    def optimizer_scopes(self):
        return ["shared"]


def test_an_interrupted_run_takes_up_the_shared_optimiser(tmp_path):
    """From its file it goes on as if nothing had been."""
    whole, half, rest = (federation(HandsOn, clients=2, rounds=3) for _ in range(3))
    rows = run_rows(whole)
    half.run_round(0)
    half.round = 1
    Checkpoint(tmp_path / "checkpoint.pt").save(half.state_dict())
    rest.load_state_dict(Checkpoint(tmp_path / "checkpoint.pt").load())
    assert run_rows(rest) == rows[1:]
    assert equal(rest.server, whole.server)
    forgotten = federation(HandsOn, clients=2, rounds=3)
    forgotten.load_state_dict({**half.state_dict(), "handed_on": []})
    assert run_rows(forgotten) != rows[1:]


def test_a_visit_that_is_left_out_leaves_no_momentum():
    """The next round begins with the optimiser state that the round with it had begun with."""

    class Diverges(HandsOn):
        def make_upload(self, client):
            upload = super().make_upload(client)
            if (client.visit.round, client.visit.client) == (1, 1):
                upload.tensors["model.conv1.bias"].fill_(float("nan"))
            return upload

    run = federation(Diverges, clients=3, rounds=3)
    run.nonfinite = "skip"
    run.run_round(0)
    before = copy.deepcopy(run.engine.shared_optimizer_state)
    run.run_round(1)
    pairs = zip(before[0], run.engine.shared_optimizer_state[0], strict=True)
    assert run.skipped == 1 and all(equal(old, new) for old, new in pairs)
    run.run_round(2)
    assert any(not equal(old, new) for old, new in zip(before[0], run.engine.shared_optimizer_state[0], strict=True))


def hand_on(fabric):
    """A run's rows, and its last model, in one of several processes."""
    method = make_method(HandsOn)
    data = few_data(3)
    run = Federation(method, data, data.roster(0), fabric, rounds=2, seed=0)
    return run_rows(run), {name: value.tolist() for name, value in run.server.items()}


def test_several_processes_hand_on_as_one_does():
    """Both hold what one process alone comes to."""
    alone = hand_on(plain_fabric())
    assert between_two(hand_on) == [alone, alone]


# --- many clients


class Specks(FSSLDataModule):
    """20 000 images of 4 x 4 pixels in two classes that differ in brightness."""

    num_classes, image_size, zoom_size, mean, std = 2, 4, 4, (0.5,), (0.25,)

    def read(self):
        rng = np.random.default_rng(0)
        labels = np.arange(20_000) % 2
        images = rng.integers(0, 128, (20_000, 4, 4, 1)) + 127 * labels[:, None, None, None]
        images, labels = images.astype(np.uint8), labels.astype(np.int64)
        return Arrays(images, labels, images[:100], labels[:100], ("dark", "bright"), {})


def specks(clients, participants, folder, rounds, **args):
    """A federation of a linear model over clients with two images each."""
    empty = np.array([], dtype=np.int64)
    pairs = tuple(np.arange(2 * k, 2 * k + 2) for k in range(clients))
    file = folder / "partition.json"
    Partition(labelled=pairs, unlabelled=(empty,) * clients, server=empty, pool=empty).save(file)
    data = Specks(partition_file=str(file), num_clients=clients)
    data.setup()
    torch.manual_seed(0)
    method = Everybody(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)))
    roster = data.roster(0, participants=participants)
    return Federation(method, data, roster, plain_fabric(), rounds=rounds, seed=0, **args)


def test_ten_thousand_clients_of_whom_ten_take_part(tmp_path):
    """Only who took part is stored, and both clients of a pair of images learn."""
    run = specks(10_000, 10, tmp_path, rounds=4)
    rows = run_rows(run)
    drawn = {c for r in range(4) for c in run.roster.sample(r)}
    assert 30 < len(drawn) <= 40
    assert run.clients.keys() == run.state_dict()["clients"].keys() == drawn
    assert [row["participants"] for row in rows] == [10] * 4
    assert rows[-1]["acc"] > rows[0]["acc"] - 1e-9 and rows[-1]["acc"] > 90


class Memory:
    """What the process holds after some rounds: blocks of Python's memory, and tensors."""

    def __init__(self, path, rounds):
        self.rounds, self.held = rounds, []
        self.checkpoint = Checkpoint(path)

    def on_round_end(self, federation, row):
        if federation.round % 50 == 0:
            self.checkpoint.save(federation.state_dict())
        if federation.round in self.rounds:
            gc.collect()
            tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
            self.held.append((sys.getallocatedblocks(), len(tensors), sum(one.nbytes for one in tensors)))


@pytest.mark.parametrize("slots", [None, 2])
def test_memory_stays_flat(tmp_path, slots):
    """From the 50th to the 200th round no tensor is left behind, and at most three small blocks of Python per round.

    One was measured, of about 70 bytes; a row that is kept would be more than ten.
    """
    memory = Memory(tmp_path / "checkpoint.pt", (50, 200))
    run = specks(10, 1, tmp_path, rounds=200, eval_every=10, callbacks=[memory], slots=slots)
    run.run()
    (blocks, *tensors), (more, *others) = memory.held
    assert len(run.clients) == 10
    assert more - blocks < 3 * 150
    assert tensors == others


# --- the server's own training


class ServerTrains(Everybody):
    """Clients do nothing; the server trains on its labels before and in every round."""

    scenario = "server"

    def make_upload(self, client):
        return None

    def server_step(self, server):
        steps = server.fit([Pass(self.streams(server.data))] * (2 if server.visit.before_first_round else 1))
        self.steps = [*getattr(self, "steps", []), steps]


def test_the_server_trains_and_keeps_its_momentum():
    """As plain SGD over 2 + 3 passes would, momentum carried along, after a resume too."""
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


class LogsAtTheServer(ServerTrains):
    """The server logs when it has averaged, and when it trains."""

    def make_upload(self, client):
        return Upload(client.visit, self.tensors("shared"), float(client.visit.client + 1))

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.log("weight", sum(upload.weight for upload in uploads))
        self.log("both", 1.0)
        assert self.tallied("both") == 1.0

    def server_step(self, server):
        self.log("both", 2.0)


@pytest.mark.parametrize("slots", [None, 2])
def test_what_the_server_logs_is_in_the_row(slots: int | None) -> None:
    """A name that both hooks log has the mean of them."""
    rows = run_rows(make_federation(LogsAtTheServer, rounds=2, slots=slots))
    clients = make_federation(LogsAtTheServer).data.num_clients
    assert [row["server/weight"] for row in rows] == [sum(range(1, clients + 1))] * 2
    assert [row["server/both"] for row in rows] == [1.5, 1.5]


@pytest.mark.parametrize("hook", ["select_clients", "broadcast", "aggregate", "remember", "refresh_norm", "predict"])
@pytest.mark.parametrize("slots", [None, 2])
def test_errors_outside_visits_say_where(hook: str, slots: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that breaks where nobody trains is named with its method and round."""
    data, method = make_data(side=SIDE), make_method("fedavg")
    federation = Federation(method, data, data.roster(0), plain_fabric(), 2, seed=0, slots=slots)

    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(federation.method, hook, broken)
    with pytest.raises(RunError, match=rf"FedAvg\.{hook}( to client \d)?, round 0: KeyError: 'lost'"):
        federation.run()


def test_what_hooks_draw_outside_visits_is_the_same_after_an_interruption() -> None:
    """Noise at the server comes from a stream of the round, not from wherever torch's generator stands."""

    class Noisy(find_class("fedavg", KINDS["method"])):
        def aggregate(self, uploads: Any) -> None:
            super().aggregate(uploads)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 1e-2 * torch.randn_like(parameter)

    whole, half, rest = (make_federation(Noisy, rounds=n) for n in (2, 1, 2))
    whole.run()
    half.run()
    rest.load_state_dict(half.state_dict())
    torch.manual_seed(99)
    rest.run()
    assert all(torch.equal(value, rest.server[name]) for name, value in whole.server.items())


@pytest.mark.parametrize("name", ["fedavg", "fed_consist", "rscfed", "fedirm", "cbafed", "local_ssl", "feddure"])
def test_training_on_labels_that_nobody_has_is_refused(name: str) -> None:
    """A record of chasing a network that has learnt nothing would look like a result."""
    data = make_data("server", pipeline="randaugment_levels_cutout")
    arguments = {"warmup_rounds": 0} if name == "cbafed" else {}
    with pytest.raises(RunError, match=r"\.select_clients, round 0: ConfigError: no client holds labels"):
        make_federation(name, data, **arguments).run()


def test_a_server_that_trains_alone_needs_labels() -> None:
    for name in ("fedcon", "server_only"):
        with pytest.raises(RunError, match=r"the server has no labels to train on; set data\.scenario=server"):
            make_federation(name, make_data("all_clients")).run()


class TeachesNothing(FedMethod):
    """Returns no loss, as a step may; ``from_round`` is where it begins to."""

    from_round = 99

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
        return loss if self.visit.round >= self.from_round else None


class TeachesLate(TeachesNothing):
    from_round = 1


def test_a_run_without_a_loss_in_any_step_says_so_once(recwarn):
    """One whose steps have a loss at last, or that takes no step, says nothing."""
    for quiet in (make_federation(TeachesLate, rounds=2), make_federation(TeachesNothing, rounds=1, local_epochs=0)):
        quiet.run()
    assert not [one for one in recwarn if "returned None" in str(one.message)]
    loud = make_federation(TeachesNothing, rounds=2)
    loud.run()
    (told,) = [str(one.message) for one in recwarn if "returned None" in str(one.message)]
    assert told.startswith(f"TeachesNothing.training_step returned None in all {loud.steps} steps of the run")
