"""What hooks hand over: logged names, hidden labels, uploads, and numbers that are not finite."""

from functools import partial

import pytest
import torch
from torch import nn

from benchmark.federation.hooks import check_declarations
from datamodules.common.errors import RunError
from federations import Unaugmented, few_federation, make_federation, run_rows, site_of
from methods.base import Upload
from methods.parts.engine_state import FRAMEWORK

ENGINES = [{}, {"slots": 2}]
federation = partial(few_federation, clients=3)


# --- names of columns


class Logs(Unaugmented):
    """Logs under the framework's names, as one does with Lightning, and under its own."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for name in ("acc", "loss", "round", "bytes_up", "pseudo/selected", "server/loss", "logged/acc", "mine"):
            self.log(name, 77.0)
        self.log_dict({"recall": 55.0, "visits": 55.0}, batch_size=5)
        return loss


@pytest.mark.parametrize("engine", ENGINES)
def test_logged_values_replace_nothing(engine):
    """A row is that of a method that logs nothing, and has the logged values under names of their own."""
    plain, logged = (run_rows(federation(cls, **engine)) for cls in (Unaugmented, Logs))
    for bare, full in zip(plain, logged, strict=True):
        assert {name: full[name] for name in bare} == bare
        more = {name: value for name, value in full.items() if name not in bare}
        assert more == {
            **{f"logged/{name}": 77.0 for name in ("acc", "loss", "round", "bytes_up", "logged/acc")},
            **{"logged/pseudo/selected": 77.0, "logged/server/loss": 77.0, "mine": 77.0},
            **{"logged/recall": 55.0, "logged/visits": 55.0},
        }


def test_every_column_that_the_framework_fills_is_reserved():
    """Rows of a method with pseudo-labels: what is not reserved is what the method logs."""
    row = run_rows(make_federation("fixmatch", rounds=1, threshold=0.0))[0]
    own = {name for name in row if name not in FRAMEWORK}
    assert own == {"loss", "loss_unlabelled", "server/loss", "server/loss_labelled"}
    assert {"pseudo/selected_by_class", "pseudo/wrong", "pseudo/balance"} <= set(row)


# --- hidden labels


class Peeps(Unaugmented):
    """Reports its labels one by one and looks for the answers wherever a method can read."""

    def local_work(self, client):
        self.found = []
        for position in client.data.unlabelled[:5]:
            one = position[None]
            client.report_pseudo_labels(one, torch.zeros_like(one), torch.ones(1, dtype=torch.bool))
            self.found += [self.tallied(f"pseudo/{name}") for name in ("correct", "right", "right_by_class")]
            self.found += [name for name in self._engine.tally.touched if name.startswith("pseudo")]
        return super().local_work(client)


def test_what_hidden_labels_say_cannot_be_read_back():
    run = federation(Peeps, clients=2, labelled=1, rounds=1)
    row = run_rows(run)[0]
    assert row["pseudo/selected"] == 1.0 and 0 <= row["pseudo/correct"] <= 1
    assert set(run.method.found) <= {None} and run.method.found
    site = site_of(run)
    assert not [name for name in vars(site) if not name.startswith("_") and name in ("around", "method", "hidden")]


# --- uploads


class Aliases(Unaugmented):
    """Uploads its live tensors: the next client writes into them."""

    def make_upload(self, client):
        return Upload(client.visit, dict(self.registered()), float(client.visit.size))


@pytest.mark.parametrize("engine", ENGINES)
def test_uploads_are_tensors_of_their_own(engine):
    plain, aliased = federation(Unaugmented, **engine), federation(Aliases, **engine)
    assert run_rows(aliased) == run_rows(plain)
    assert all(torch.equal(value, aliased.server[name]) for name, value in plain.server.items())


class Momenta(Unaugmented):
    """Uploads the momentum of a parameter; a seat with replay keeps it in one place for all clients."""

    def make_upload(self, client):
        upload = super().make_upload(client)
        upload.stats["momentum"] = self.momenta[0]
        return upload

    def on_train_end(self):
        (optimizer,) = self.trainer.optimizers
        self.momenta = [state["momentum_buffer"] for state in optimizer.state.values()]

    def aggregate(self, uploads):
        self.lengths = [float(upload.stats["momentum"].norm()) for upload in uploads]
        super().aggregate(uploads)


class Remembers(Unaugmented):
    """Keeps the live weight of the server, which the next client writes into, and looks at what is kept."""

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.kept, self.found = [], []

    def remember(self, uploads):
        bias = self.state_dict()["model.conv1.bias"]
        self.kept.append(bias.clone())
        return {upload.visit.client: {"bias": bias} for upload in uploads}

    def broadcast(self, server, visit):
        self.look(visit)
        return super().broadcast(server, visit)

    def on_train_end(self):
        self.look(self.visit)

    def look(self, visit):
        self.found += [(visit.round, own["bias"].clone()) for own in self.memory.values()]


def test_statistics_are_tensors_of_their_own():
    runs = [federation(Momenta, **engine) for engine in ({}, {"slots": 1}, {"slots": 2})]
    for run in runs:
        run_rows(run)
    first, *others = (run.method.lengths for run in runs)
    assert len(set(first)) == 3
    assert all(lengths == pytest.approx(first, rel=1e-4) for lengths in others)


def test_what_is_remembered_is_a_copy():
    """It stays what it was, before and after a client's training, until the end of the round."""
    run = federation(Remembers, rounds=3)
    run_rows(run)
    kept, found = run.method.kept, run.method.found
    assert len(found) == 2 * 3 * 2 * 3  # rounds with a memory, clients, looks, entries
    assert all(torch.equal(bias, kept[number - 1]) for number, bias in found)
    assert not torch.equal(kept[0], kept[1])


def test_a_broadcast_sees_the_server():
    """Tensors that stay with it, read from the method itself, are the server's for every client of a round."""

    class Gains(Unaugmented):
        scopes = {"gain": "server"}

        def __init__(self, model, **base):
            super().__init__(model, **base)
            self.register_buffer("gain", torch.ones(()))

        def broadcast(self, server, visit):
            assert float(self.gain) == float(server["gain"]) == 1 + 2 * visit.round
            return super().broadcast(server, visit)

        def aggregate(self, uploads):
            super().aggregate(uploads)
            self.gain += 2

    for engine in ENGINES:
        run_rows(federation(Gains, **engine))


# --- numbers that are not finite


class Broken(Unaugmented):
    """Client 1 breaks in round 1: what it uploads, its loss, or a statistic is not finite. It keeps a count."""

    scopes = {"visited": "personal", "factor": "local"}
    where = "tensor"

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.register_buffer("visited", torch.zeros(()))
        self.register_buffer("factor", torch.ones(()))

    def broken(self):
        return self.visit.client == 1 and self.visit.round == 1

    def local_work(self, client):
        self.factor.fill_(torch.inf if self.broken() and self.where == "loss" else 1.0)
        return super().local_work(client)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.factor

    def make_upload(self, client):
        self.visited += 1
        upload = super().make_upload(client)
        if self.broken() and self.where == "tensor":
            upload.tensors["model.conv1.weight"][0, 0, 0, 3] = torch.nan
        upload.stats["s"] = torch.tensor([1.0, -torch.inf if self.broken() and self.where == "stats" else 2.0])
        upload.stats["model.conv1.weight"] = torch.ones(1)  # by the name of a tensor
        if self.broken() and self.where == "weight":
            upload.weight = float("nan")
        return upload


class Absent(Broken):
    """The same federation, where client 1 is not asked in round 1."""

    where = "nowhere"

    def select_clients(self, round, roster):
        return [[0, 2]] if round == 1 else [[0, 1, 2]]


def broken(place):
    return type("Broken", (Broken,), {"where": place})


NAMES = {
    "tensor": r"the uploaded model\.conv1\.weight",
    "loss": "the loss",
    "stats": "the uploaded s",
    "weight": "the upload's weight",
}


@pytest.mark.parametrize("place", NAMES)
def test_an_update_that_is_not_finite_ends_the_run(place):
    """With method, client, round, and what it is."""
    with pytest.raises(
        RunError, match=rf"^Broken, client 1 \(83 images\), round 1: {NAMES[place]} is not finite\. The"
    ):
        federation(broken(place), rounds=3).run()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("place", NAMES)
def test_or_is_left_out_and_counted(place, engine):
    """As if the client had not been asked: the same models, means and states; but its visit and bytes count."""
    skips = federation(broken(place), rounds=3, nonfinite="skip", **engine)
    absent = federation(Absent, rounds=3, **engine)
    rows, expected = run_rows(skips), run_rows(absent)
    assert [row.get("skipped") for row in rows] == [None, 1, 1]
    counts = ("skipped", "visits", "participants", "steps", "bytes_up", "bytes_down")
    for row, other in zip(rows, expected, strict=True):
        assert {k: v for k, v in row.items() if k not in counts} == {k: v for k, v in other.items() if k not in counts}
    assert rows[1]["visits"] == 3 and rows[1]["bytes_up"] == 2 * rows[0]["bytes_up"]
    assert all(torch.equal(value, absent.server[name]) for name, value in skips.server.items())
    assert [float(skips.clients[k].tensors["visited"]) for k in range(3)] == [3, 2, 3]


# --- declarations


def test_what_is_there_but_empty_may_be_declared():
    """A part that a switch turns off has no tensors, and its scope stays declared."""

    class Switched(Unaugmented):
        scopes = {"teacher": "personal", "list": "local", "model.head": "server"}

        def __init__(self, model, **base):
            super().__init__(model, **base)
            self.teacher, self.list = None, nn.ParameterList()

    check_declarations(federation(Switched).method)
