"""The reference engine: equal to plain torch; tensors and optimisers in their scopes; what visits draw and are told."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.config import Run, RunConfig
from benchmark.federation.assembly import sees_hidden_labels
from benchmark.federation.collectives import tensors_in
from benchmark.federation.fit import Fit
from benchmark.federation.site import measured
from benchmark.registry import ClassSpec
from datamodules.base import SiteData
from datamodules.common.errors import RunError
from datamodules.common.streams import generator
from datamodules.partition.sites import true_labels
from federations import (
    SIDE,
    Unaugmented,
    few_data,
    few_federation,
    make_federation,
    run_rows,
    same_server,
    same_tensors,
    site_of,
    visited,
)
from methods import models
from methods.base import Visit

ROUNDS = 2


@pytest.mark.parametrize("reset", [False, True])
def test_one_client_is_a_plain_training_loop(reset):
    """With all data at one client, the federation is SGD over shuffled epochs, bit for bit."""
    run = few_federation(local_epochs=2, lr=0.1, clip_norm=1.0, nesterov=True, reset_momentum=reset)
    data, site = run.data, run.data.client(0)
    run_rows(run)

    torch.manual_seed(0)
    model = models.build("small_cnn", 10, image_size=SIDE)
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "fused": True}
    for number in range(ROUNDS):
        if reset or not number:
            optimizer = torch.optim.SGD(model.parameters(), **options)
        for epoch in (1, 2):
            order = torch.randperm(250, generator=generator(0, f"order/labelled/{epoch}", number, 0, 0))
            for part in order.split(64):
                x = data.take("test", site.labelled[part])
                optimizer.zero_grad()
                F.cross_entropy(model(x), site.labels[part]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    trained = {f"model.{k}": v for k, v in model.state_dict().items()}
    assert trained.keys() == run.server.keys()
    assert all(torch.equal(v, run.server[k]) for k, v in trained.items())


class Normalised(Unaugmented):
    """On a network with running statistics."""

    def __init__(self, model, **base):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 10))
        super().__init__(net, **base)


def test_batch_norm_travels_with_the_model():
    """Statistics are averaged like weights; a counter is averaged and truncated when it is loaded."""
    run = few_federation(Normalised, clients=2, rounds=2)
    site = run.data.client(1)
    run.data.clients[1] = SiteData(site.labelled[:70], site.labels[:70], site.unlabelled)
    uploads = [visited(run, v)[0].upload.tensors for v in run.visits(0)]
    run.run_round(0)
    for name in ("model.1.running_mean", "model.1.running_var", "model.0.weight"):
        mean = (125 * uploads[0][name].double() + 70 * uploads[1][name].double()) / 195
        torch.testing.assert_close(run.server[name], mean.float(), rtol=1e-6, atol=0)
    assert [int(u["model.1.num_batches_tracked"]) for u in uploads] == [2, 2]
    run.server["model.1.num_batches_tracked"] += 3
    run.data.clients[1] = SiteData(site.labelled[:20], site.labels[:20], site.unlabelled)
    run.run_round(1)
    assert int(run.server["model.1.num_batches_tracked"]) == int((125 * (5 + 2) + 20 * (5 + 1)) / 145) == 6


class TwoOptimisers(Unaugmented):
    """One optimiser for the head, one for the rest."""

    automatic_optimization = False

    def configure_optimizers(self):
        rest = [p for name, p in self.model.named_parameters() if not name.startswith("head.")]
        return [torch.optim.Adam(self.model.head.parameters(), 1e-3), torch.optim.SGD(rest, 0.03, momentum=0.9)]

    def training_step(self, batch, batch_idx):
        for one in self.optimizers():
            self.descend(one, super().training_step(batch, batch_idx))


class KeepsOne(TwoOptimisers):
    """The head's optimiser is new at every visit."""

    def optimizer_scopes(self):
        return ["local", "personal"]


class AnotherOptimiser(Unaugmented):
    """From the second round on, the head has an optimiser of its own."""

    def configure_optimizers(self):
        whole = super().configure_optimizers()
        return whole if self.visit.round == 0 else [whole, torch.optim.SGD(self.model.head.parameters(), 0.1)]


def test_kept_states_belong_to_the_optimisers_that_left_them():
    with pytest.raises(RunError, match=r"AnotherOptimiser, client 0 .*round 1.*returned other optimisers"):
        few_federation(AnotherOptimiser, clients=2).run()


def test_each_optimiser_has_its_scope():
    """What is local is stored empty and starts anew; what is personal continues."""
    both, one = few_federation(TwoOptimisers, clients=2), few_federation(KeepsOne, clients=2)
    for run in (both, one):
        run.run_round(0)
    assert same_server(both, one)
    for state in one.clients.values():
        adam, sgd = state.optimizers
        assert not any(adam)
        assert all(set(own) == {"momentum_buffer"} for own in sgd)
    one.method.visit = one.visits(1)[0]
    adam, sgd = Fit(one.method, one.clients[0].optimizers).optimizers
    assert not adam.state and all(sgd.state[p]["momentum_buffer"].any() for p in sgd.param_groups[0]["params"])


class RestartsOnce(Unaugmented):
    """Its optimiser's state is personal, and begins anew in round 1."""

    def optimizer_scopes(self):
        return ["local" if self.visit.round == 1 else "personal"]


def test_a_local_state_begins_anew_at_that_visit():
    """So the momentum of the rounds before is in none of its steps."""
    once, never = few_federation(RestartsOnce, clients=2), few_federation(Unaugmented, clients=2)
    for run in (once, never):
        run.run_round(0)
    never.clients.clear()
    for run in (once, never):
        run.run_round(1)
    assert same_server(once, never)
    assert not any(state.optimizers for state in once.clients.values())


class Scoped(Unaugmented):
    """A counter of steps in every scope, and what each visit finds in them."""

    scopes = {"mine": "personal", "scratch": "local", "secret": "server"}

    def __init__(self, model, **base):
        super().__init__(model, **base)
        for name in ("mine", "scratch", "secret", "common", "mute"):
            self.register_buffer(name, torch.zeros(()))
        self.found = []

    def note(self, where):
        self.found.append((where, {name: float(value) for name, value in self.named_buffers()}))

    def broadcast(self, server, visit):
        return {k: v for k, v in super().broadcast(server, visit).items() if k != "mute"}

    def on_train_start(self):
        self.note(self.visit)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for _, buffer in self.named_buffers():
            buffer += 1.0

    def aggregate(self, uploads):
        self.note("aggregate")
        super().aggregate(uploads)

    def server_step(self, server):
        self.note("before" if server.visit.before_first_round else "server")
        self.secret += 10.0

    def refresh_norm(self, data):
        self.note("refresh")


def test_scopes():
    """Personal tensors stay, local ones are rebuilt, the server's never travel, unsent ones are not another's."""
    run = few_federation(Scoped, clients=3)
    site = run.data.client(1)
    run.data.clients[1] = SiteData(site.labelled[:40], site.labels[:40], site.unlabelled)
    run_rows(run)
    assert [run.data.client(c).size for c in range(3)] == [83, 40, 83]
    steps = [2, 1, 2]
    mean = (83 * 2 + 40 * 1 + 83 * 2) / 206
    visits = [(where, found) for where, found in run.method.found if isinstance(where, Visit)]
    assert len(visits) == 3 * ROUNDS
    for visit, found in visits:
        again = visit.round > 0
        assert visit.first is not again
        assert found["mine"] == (steps[visit.client] if again else 0)
        assert found["common"] == pytest.approx(mean if again else 0)
        assert found["scratch"] == found["secret"] == found["mute"] == 0
    at_server = [(where, found) for where, found in run.method.found if isinstance(where, str)]
    assert [where for where, _ in at_server] == ["before", "refresh", *["aggregate", "server", "refresh"] * ROUNDS]
    for _, found in at_server:
        assert found["mine"] == found["scratch"] == 0
    assert float(run.server["secret"]) == 10 * (1 + ROUNDS)
    assert run.server.keys() == set(run.method.names("shared", "server"))
    assert all(state.tensors.keys() == {"mine"} for state in run.clients.values())


class Adaptive(Unaugmented):
    """With an optimiser whose state has several parts."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=1e-3, amsgrad=True)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {"momentum": 0.0}),
        ("fedavg", {"reset_momentum": True}),
        ("fed_consist", {"warmup_rounds": 0}),
        (Adaptive, {}),
    ],
)
def test_what_clients_keep_is_foretold(method, options):
    """The bytes shown before a run are those of the store after it, and foretelling them changes nothing."""
    run = make_federation(method, few_data(2), rounds=1, **options)
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
    run.run()
    for seat in run.engine.seats:
        assert set(seat.method.modes) == {(False, True)}


class Draws(Unaugmented):
    """Draws from torch's own generator, as dropout does, and from the method's, as a step may."""

    def on_train_start(self):
        self.log("start", torch.rand((), generator=self.generator))

    def training_step(self, batch, batch_idx):
        self.log("noise", torch.rand(()))
        self.log("step", torch.rand((), generator=self.generator))
        return super().training_step(batch, batch_idx)


def test_what_a_step_draws_belongs_to_the_visit():
    """It repeats, differs between rounds, clients and repeats, and leaves torch's global generator alone."""
    run = few_federation(Draws, clients=2)
    first, state = run.visits(0)[0], torch.random.get_rng_state()

    def drawn(visit):
        sums = visited(run, visit)[0].sums
        return tuple(float(sums[name][0]) for name in ("noise", "start", "step"))

    others = [replace(first, round=1), replace(first, client=1), replace(first, repeat=1)]
    assert len({number for v in (first, *others) for number in drawn(v)}) == 12
    assert drawn(first) == drawn(first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_pseudo_labels_are_judged_by_the_hidden_labels():
    """Of 8 images 6 are selected and 4 of them are right; shares are of all 8. The method cannot read them back."""
    run = few_federation(clients=2, labelled=1)
    index = run.data.client(1).unlabelled[:8]
    labels = true_labels(run.data)[index].clone()
    selected = torch.tensor([True] * 6 + [False] * 2)
    labels[[0, 1, 6]] = (labels[[0, 1, 6]] + 1) % 10

    def shares(index, labels, selected):
        site = site_of(run, Visit(client=1))
        site.report_pseudo_labels(index, labels, selected)
        assert run.method.tallied("pseudo/correct") is None
        return {name: (total / weight).tolist() for name, (total, weight) in measured(site).taken().items()}

    found = shares(index, labels, selected)
    assert (found["pseudo/selected"], found["pseudo/correct"]) == (0.75, 0.5)
    assert sum(found["pseudo/correct_by_class"]) == pytest.approx(0.5)
    one_of_eight = torch.bincount(labels[selected], minlength=10) / 8
    assert found["pseudo/selected_by_class"] == pytest.approx(one_of_eight.tolist())
    assert shares(index[:0], labels[:0], selected[:0]) == {}


class Declares(Unaugmented):
    """Says in its constructor whether it sees hidden labels."""

    def __init__(self, model, uses=True, **base):
        super().__init__(model, **base)
        self.uses_oracle = uses


@pytest.mark.parametrize("uses", [False, True])
def test_hidden_labels_are_for_declared_oracles_only(uses):
    """A class that says nothing may have instances that do."""
    run = few_federation(Declares, clients=2, labelled=1, uses=uses)
    site = site_of(run, Visit(client=1))
    index = site.data.unlabelled[:4]
    with nullcontext() if uses else pytest.raises(RunError, match="uses_oracle"):
        assert site.oracle(index, true_labels(run.data)[index]).all()
    data = ClassSpec("few_digits.FewDigits", {"num_clients": 2})
    config = RunConfig(ClassSpec(f"{__name__}.Declares", {"uses": uses}), data, model="small_cnn", rounds=1)
    assert sees_hidden_labels(Run.of(config)) == uses
