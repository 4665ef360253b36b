"""What hooks hand over: logged names, uploads, and numbers that are not finite."""

from functools import partial

import pytest
import torch

from federations import Unaugmented, few_federation, make_federation, run_rows, same_server
from methods.base import Upload
from methods.parts.engine_state import FRAMEWORK

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


@pytest.mark.parametrize("engine", [{}, {"slots": 2}])
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


# --- uploads


class Aliases(Unaugmented):
    """Uploads its live tensors, which the next client writes into, and keeps one of the server's."""

    def on_train_end(self):
        (optimizer,) = self.trainer.optimizers
        self.momentum = next(iter(optimizer.state.values()))["momentum_buffer"]

    def make_upload(self, client):
        return Upload(client.visit, dict(self.registered()), float(client.visit.size), {"momentum": self.momentum})

    def aggregate(self, uploads):
        self.lengths = [float(upload.stats["momentum"].norm()) for upload in uploads]
        super().aggregate(uploads)

    def remember(self, uploads):
        return {upload.visit.client: {"bias": self.state_dict()["model.conv1.bias"]} for upload in uploads}


def test_what_hooks_hand_over_are_tensors_of_their_own():
    plain, *aliased = federation(Unaugmented), *(federation(Aliases, slots=slots) for slots in (None, 1, 2))
    plain.run()
    for run in aliased:
        run.run()
        assert same_server(run, plain)
        assert len(set(run.method.lengths)) == 3
        assert run.method.lengths == pytest.approx(aliased[0].method.lengths, rel=1e-4)
        bias = run.server["model.conv1.bias"].clone()
        run.method.state_dict()["model.conv1.bias"].add_(1.0)
        assert [torch.equal(own["bias"], bias) for own in run.method.memory.values()] == [True] * 3


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

    federation(Gains).run()
    federation(Gains, slots=2).run()


# --- numbers that are not finite


class Broken(Unaugmented):
    """Client 1 breaks in round 1: what it uploads, its loss, or a statistic is not finite. It keeps a count."""

    scopes = {"visited": "personal", "factor": "local"}

    def __init__(self, model, where, momentum_is="personal", **base):
        super().__init__(model, **base)
        self.where, self.momentum_is = where, momentum_is
        self.register_buffer("visited", torch.zeros(()))
        self.register_buffer("factor", torch.ones(()))

    def optimizer_scopes(self):
        return [self.momentum_is]

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

    def select_clients(self, round, roster):
        return [[0, 2]] if round == 1 else [[0, 1, 2]]


@pytest.mark.parametrize(
    ("place", "engine"),
    [
        ("tensor", {}),
        ("tensor", {"momentum_is": "shared"}),  # the next visit begins with what this one had begun with
        ("stats", {}),
        ("weight", {}),
        ("loss", {}),
        ("loss", {"slots": 2}),
        ("loss", {"sums": "by_rank"}),
    ],
)
def test_an_update_that_is_not_finite_is_left_out_and_counted(place, engine):
    """As if the client had not been asked: the same models, means and states; but its visit and bytes count."""
    skips = federation(Broken, where=place, rounds=3, nonfinite="skip", **engine)
    absent = federation(Absent, where="nowhere", rounds=3, **engine)
    rows, expected = run_rows(skips), run_rows(absent)
    assert [row.get("skipped") for row in rows] == [None, 1, 1]
    counts = ("skipped", "visits", "participants", "steps", "bytes_up", "bytes_down")
    for row, other in zip(rows, expected, strict=True):
        assert {k: v for k, v in row.items() if k not in counts} == {k: v for k, v in other.items() if k not in counts}
    assert rows[1]["visits"] == 3 and rows[1]["bytes_up"] == 2 * rows[0]["bytes_up"]
    assert same_server(skips, absent)
    assert [float(skips.clients[k].tensors["visited"]) for k in range(3)] == [3, 2, 3]
    resumed = federation(Broken, where=place, rounds=3, nonfinite="skip", **engine)
    resumed.load_state_dict(skips.state_dict())
    assert resumed.skipped == 1
