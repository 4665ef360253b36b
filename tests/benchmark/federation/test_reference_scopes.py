"""Tensors in their scopes, and modes of modules, in visits of the reference engine."""

import pytest
import torch
from torch import nn

from benchmark.federation.collectives import tensors_in
from datamodules.base import SiteData
from datamodules.common.streams import SERVER
from federations import Unaugmented, few_data, few_federation, make_federation, run_rows, same_tensors
from methods.base import Visit

ROUNDS = 2


class Scoped(Unaugmented):
    """A counter of steps in every scope, and what each visit finds in them."""

    scopes = {"mine": "personal", "scratch": "local", "secret": "server"}

    def __init__(self, model, **base):
        super().__init__(model, **base)
        for name in ("mine", "scratch", "secret", "common", "mute"):
            self.register_buffer(name, torch.zeros(()))
        self.found = []

    def counters(self):
        return {n: float(v) for n, v in self.named_buffers()}

    def broadcast(self, server, visit):
        return {k: v for k, v in super().broadcast(server, visit).items() if k != "mute"}

    def on_train_start(self):
        self.found.append((self.visit, self.visit.first, self.counters()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for _, buffer in self.named_buffers():
            buffer += 1.0

    def aggregate(self, uploads):
        self.found.append(("aggregate", None, self.counters()))
        super().aggregate(uploads)

    def server_step(self, server):
        self.found.append(("before" if server.visit.before_first_round else "server", None, self.counters()))
        self.secret += 10.0

    def refresh_norm(self, data):
        self.found.append(("refresh", None, self.counters()))


def test_scopes():
    """Personal tensors stay, local ones are rebuilt, the server's never travel, unsent ones are not another's."""
    run = few_federation(Scoped, clients=3)
    site = run.data.client(1)
    run.data.clients[1] = SiteData(site.labelled[:40], site.labels[:40], site.unlabelled)
    run_rows(run)
    assert [run.data.client(c).size for c in range(3)] == [83, 40, 83]
    steps = [2, 1, 2]
    mean = (83 * 2 + 40 * 1 + 83 * 2) / 206
    visits = [(v, f, n) for v, f, n in run.method.found if isinstance(v, Visit) and v.client != SERVER]
    assert len(visits) == 3 * ROUNDS
    for visit, first, found in visits:
        again = visit.round > 0
        assert first is not again
        assert found["mine"] == (steps[visit.client] if again else 0)
        assert found["common"] == pytest.approx(mean if again else 0)
        assert found["scratch"] == found["secret"] == found["mute"] == 0
    at_server = [(v, n) for v, _, n in run.method.found if isinstance(v, str)]
    assert [v for v, _ in at_server] == ["before", "refresh", *["aggregate", "server", "refresh"] * ROUNDS]
    for _, found in at_server:
        assert found["mine"] == found["scratch"] == 0
    assert float(run.server["secret"]) == 10 * (1 + ROUNDS)
    assert run.server.keys() == set(run.method.names("shared", "server"))
    assert all(state.tensors.keys() == {"mine"} for state in run.clients.values())


class Steps(Unaugmented):
    """Takes its steps with an optimiser of torch's."""

    def __init__(self, model, optimizer, options=None, **base):
        super().__init__(model, **base)
        self.made = lambda: getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-3, **(options or {}))

    def configure_optimizers(self):
        return self.made()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"momentum": 0.9}),
        ("fedavg", {"momentum": 0.0}),
        ("fedavg", {"reset_momentum": True}),
        ("fed_consist", {"warmup_rounds": 0}),
        ("local_ssl", {"reset_momentum": False}),
        (Steps, {"optimizer": "RMSprop"}),
        (Steps, {"optimizer": "Adagrad"}),
        (Steps, {"optimizer": "Adam", "options": {"amsgrad": True}}),
    ],
)
def test_what_clients_keep_is_foretold(name, options):
    """The bytes shown before a run are those of the store after it, and foretelling them changes nothing."""
    run = make_federation(name, few_data(2) if name is Steps else None, rounds=1, **options)
    before = run.method.tensors("shared", "personal", "server")
    foretold = run.engine.kept_bytes()
    assert same_tensors(before, run.method.tensors("shared", "personal", "server"))
    run_rows(run)
    for state in run.clients.values():
        assert foretold == sum(tensor.nbytes for tensor in tensors_in((state.tensors, state.optimizers)))
    assert run.clients


class PartlyFrozen(Unaugmented):
    """One part is in evaluation mode from the start; hooks change modes and leave them so."""

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.resting, self.trained = nn.Identity(), nn.Identity()
        self.resting.eval()
        self.modes = []

    def local_work(self, client):
        self.resting.train()
        [work] = super().local_work(client)

        def made_in_turn():
            self.train(client.visit.client == 0)  # the hidden part wakes, or the other one rests
            return work

        return [work, made_in_turn]

    def note(self):
        self.modes.append((self.resting.training, self.trained.training))

    def training_step(self, batch, batch_idx):
        self.note()
        return super().training_step(batch, batch_idx)

    def make_upload(self, client):
        self.eval()
        return super().make_upload(client)

    def server_step(self, server):
        self.note()


@pytest.mark.parametrize("slots", [None, 2])
def test_a_part_built_in_evaluation_mode_stays_there(slots):
    """As in Lightning's fit, clients and the server train what was built to train."""
    run = few_federation(PartlyFrozen, clients=3, slots=slots, replay=False)
    run_rows(run)
    methods = [seat.method for seat in run.engine.seats]
    for method in methods:
        assert method.modes
        assert set(method.modes) == {(False, True)}
