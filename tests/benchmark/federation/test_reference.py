"""The reference engine: equal to plain torch, states in their scopes, errors that say where, honest metrics."""

from dataclasses import replace

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from benchmark.contract.federations import half_trained
from benchmark.federation.reference import EVAL_BLOCK
from datamodules.base import SiteData
from datamodules.common.errors import RunError
from datamodules.common.streams import SERVER, generator
from federations import SIDE, FewDigits, different, few_data, make_federation, run_rows, site_of, visited
from methods import models
from methods.base import FedMethod, Pass, Visit
from methods.parts.aggregation import weighted_mean

ROUNDS = 2


class Plain(FedMethod):
    """Cross-entropy on images that are not augmented."""

    views = {"labelled": {"x": "test"}}

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


def federation(cls=Plain, clients=1, labelled=None, rounds=ROUNDS, **args):
    return make_federation(cls, few_data(clients, labelled), rounds, **args)


# --- the same as plain torch


@pytest.mark.parametrize("reset", [False, True])
def test_one_client_is_a_plain_training_loop(reset):
    """With all data at one client, the federation is SGD over shuffled epochs, bit for bit."""
    run = federation(local_epochs=2, lr=0.1, clip_norm=1.0, nesterov=True, reset_momentum=reset)
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


class HandsOn(Plain):
    """One optimiser state for all clients, who come from the last to the first."""

    def optimizer_scopes(self):
        return ["shared"]

    def select_clients(self, round, roster):
        return [roster.sample(round)[::-1]]


def test_a_shared_optimiser_goes_from_visit_to_visit():
    """One optimiser of plain torch for both clients and all rounds, in the order drawn, bit for bit."""
    run = federation(HandsOn, clients=2, lr=0.1, clip_norm=None)
    data = run.data
    run_rows(run)
    assert not any(state.optimizers for state in run.clients.values())
    assert run.client_state_bytes == 0

    torch.manual_seed(0)
    model = models.build("small_cnn", 10, image_size=SIDE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, fused=True)
    for number in range(ROUNDS):
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        left = {}
        for client in (1, 0):
            site = data.client(client)
            model.load_state_dict(sent)
            order = torch.randperm(site.size, generator=generator(0, "order/labelled/1", number, client, 0))
            for part in order.split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(data.take("test", site.labelled[part])), site.labels[part]).backward()
                optimizer.step()
            left[client] = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(weighted_mean([left[0], left[1]], [data.client(k).size for k in (0, 1)]))
    assert all(torch.equal(value, run.server[f"model.{name}"]) for name, value in model.state_dict().items())


class Epochs(IterableDataset):
    """What client 0 trains on in a round, one round after the other."""

    def __init__(self, run):
        self.run, self.rounds = run, 0

    def __iter__(self):
        site = site_of(self.run, Visit(round=self.rounds, size=self.run.data.client(0).size))
        self.rounds += 1
        return site.batches(self.run.method.local_work(site), 0)


def test_one_client_that_holds_everything_is_central_training():
    """A plain Trainer over the same epochs ends at the same bits, with labels, pseudo-labels and kept momentum."""
    args = {"unsup_norm": "all", "lr_schedule": "constant", "server_momentum": 0.0, "local_epochs": 1}

    def made():
        data = FewDigits(
            scenario="all_clients", num_clients=1, num_labels=100, pipeline="randaugment_uniform", side=SIDE
        )
        data.setup()
        return make_federation("methods.ablations.fixmatch.EveryStep", data, ROUNDS, weights=half_trained(), **args)

    run, central = made(), made()
    assert run_rows(run)[-1]["pseudo/selected"] > 0
    trainer = L.Trainer(
        max_epochs=ROUNDS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(central.method, DataLoader(Epochs(central), batch_size=None))
    assert trainer.global_step == run.steps
    assert different(central.method.tensors("shared"), run.method.tensors("shared")) == []


class Normalised(Plain):
    """On a network with running statistics."""

    def __init__(self, model, **base):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 10))
        super().__init__(net, **base)


def test_batch_norm_travels_with_the_model():
    """Statistics are averaged like weights; a counter is averaged and truncated when it is loaded."""
    one = federation(Normalised, rounds=1)
    alone = visited(one, one.visits(0)[0])[0].upload.tensors
    run_rows(one)
    assert all(torch.equal(v, one.server[k]) for k, v in alone.items())
    assert int(one.server["model.1.num_batches_tracked"]) == 4

    run = federation(Normalised, clients=2, rounds=2)
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


def test_optimiser_state_is_kept_or_reset():
    """A kept buffer continues, is a client's own, and a visit changes only a copy of it."""
    kept, reset = (federation(clients=3, reset_momentum=r) for r in (False, True))
    for run in (kept, reset):
        run.run_round(0)
    assert all(state.optimizers == [] for state in reset.clients.values())
    buffers = {c: s.optimizers[0][0]["momentum_buffer"] for c, s in kept.clients.items()}
    assert not torch.equal(buffers[0], buffers[1])
    before = buffers[0].clone()
    visit = kept.visits(1)[0]
    first, second, forgotten = (visited(kept, visit, state)[0].upload for state in (*[kept.clients[0]] * 2, None))
    assert torch.equal(buffers[0], before)
    assert all(torch.equal(v, second.tensors[k]) for k, v in first.tensors.items())
    assert any(not torch.equal(v, forgotten.tensors[k]) for k, v in first.tensors.items())


class TwoOptimisers(Plain):
    """One optimiser for the head, one for the rest."""

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.automatic_optimization = False

    def configure_optimizers(self):
        head = list(self.model.head.parameters())
        known = {id(p) for p in head}
        rest = [p for p in self.model.parameters() if id(p) not in known]
        return [torch.optim.Adam(head, 1e-3), torch.optim.SGD(rest, 0.03, momentum=0.9)]

    def training_step(self, batch, batch_idx):
        for one in self.optimizers():
            one.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for one in self.optimizers():
            one.step()
        self.log("loss", loss)


class KeepsOne(TwoOptimisers):
    """The head's optimiser is new at every visit."""

    def optimizer_scopes(self):
        return ["local", "personal"]


class Both(TwoOptimisers):
    def optimizer_scopes(self):
        return ["shared", "personal"]


class Miscounts(TwoOptimisers):
    def optimizer_scopes(self):
        return ["local", "personal", "personal"]


def test_several_optimisers_keep_their_own_states():
    run = federation(TwoOptimisers, clients=2)
    run.run_round(0)
    adam, sgd = run.clients[1].optimizers
    assert set(adam[0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(sgd[0]) == {"momentum_buffer"}
    steps = float(adam[0]["step"])
    run.run_round(1)
    assert float(run.clients[1].optimizers[0][0]["step"]) == 2 * steps > 0


class AnotherOptimiser(Plain):
    """From the second round on, the head has an optimiser of its own."""

    def configure_optimizers(self):
        whole = super().configure_optimizers()
        return whole if self.visit.round == 0 else [whole, torch.optim.SGD(self.model.head.parameters(), 0.1)]


def test_kept_states_belong_to_the_optimisers_that_left_them():
    with pytest.raises(RunError, match=r"AnotherOptimiser, client 0 .*round 1.*returned other optimisers"):
        federation(AnotherOptimiser, clients=2).run()


def test_each_optimiser_has_its_scope():
    """What is local is stored empty and starts anew; what is personal continues."""
    both, one = federation(TwoOptimisers, clients=2), federation(KeepsOne, clients=2)
    for run in (both, one):
        run.run_round(0)
    assert all(torch.equal(v, one.server[k]) for k, v in both.server.items())
    for state in one.clients.values():
        adam, sgd = state.optimizers
        assert not any(adam)
        assert all(set(own) == {"momentum_buffer"} for own in sgd)
    site = site_of(one, one.visits(1)[0])
    site.optimizer_states = one.clients[0].optimizers
    adam, sgd = site.prepare_fit().optimizers
    assert not adam.state and all(sgd.state[p]["momentum_buffer"].any() for p in sgd.param_groups[0]["params"])
    with pytest.raises(RunError, match=r"Miscounts, client 0 .*optimizer_scopes names 3 scopes for 2 optimisers"):
        federation(Miscounts, clients=2).run()
    with pytest.raises(RunError, match="names both shared and personal; an optimiser beside a shared one is local"):
        federation(Both, clients=2).run()


# --- scopes


class Scoped(Plain):
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
    run = federation(Scoped, clients=3)
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


def test_uploads_and_downloads_hold_shared_tensors_only():
    run = federation(Scoped, clients=2)
    visit = run.visits(0)[0]
    (upload, _, down, steps), kept = visited(run, visit)
    assert upload.tensors.keys() == set(run.method.names("shared"))
    assert upload.weight == visit.size == run.data.client(0).size
    assert float(kept.tensors["mine"]) > 0
    assert down == 4 * (61_906 + 1)  # the network and `common`
    assert steps == -(-visit.size // run.method.hparams.batch_size)


def test_a_visit_depends_only_on_what_it_is_given():
    """Whoever was visited before, in whichever mode they left the module."""
    run = federation(Scoped, clients=3)
    visits = run.visits(0)
    alone = visited(run, visits[2])[0].upload
    visited(run, visits[0])
    run.method.eval()
    after = visited(run, visits[2])[0].upload
    assert all(torch.equal(v, after.tensors[k]) for k, v in alone.tensors.items())


class Modes(Plain):
    def note(self):
        self.modes.append((self.training, torch.is_grad_enabled()))

    def local_work(self, client):
        self.modes = []
        self.note()
        self.eval()
        return super().local_work(client)

    def on_train_start(self):
        self.note()

    def training_step(self, batch, batch_idx):
        self.note()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"momentum": 0.9}),
        ("fedavg", {"momentum": 0.0}),
        ("fedavg", {"reset_momentum": True}),
        ("fed_consist", {"warmup_rounds": 0}),
        ("local_ssl", {"reset_momentum": False}),
    ],
)
def test_what_clients_keep_is_foretold(name, options):
    """The bytes shown before a run are those of the store after it."""
    run = make_federation(name, rounds=1, **options)
    foretold = run.engine.kept_bytes()
    run_rows(run)
    for state in run.clients.values():
        kept = [
            t for own in state.optimizers for s in own for t in s.values() if isinstance(t, torch.Tensor) and t.ndim
        ]
        every = [*state.tensors.values(), *kept]
        assert foretold == sum(t.numel() * t.element_size() for t in every)
    assert run.clients


def test_modes():
    """All hooks find training mode and gradients, whatever mode the preparation, or another visit, has left."""
    run = federation(Modes, clients=6)
    run.method.eval()
    visited(run, run.visits(0)[0])
    assert run.method.modes == [(True, True)] * 3


class PartlyFrozen(Plain):
    """One part is in evaluation mode from the start; hooks change modes and leave them so."""

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.resting, self.trained = nn.Dropout(), nn.Dropout()
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
    run = federation(PartlyFrozen, clients=3, slots=slots, replay=False)
    run_rows(run)
    methods = [slot.engine.method for slot in run.engine.slots] if slots else [run.method]
    for method in methods:
        assert method.modes
        assert set(method.modes) == {(False, True)}


# --- errors


class Breaks(Plain):
    """Raises in one hook."""

    def __init__(self, model, hook="", **base):
        super().__init__(model, **base)

    def fail(self, hook):
        if self.hparams.hook == hook and self.visit.round == 1:
            raise ZeroDivisionError("broken on purpose")

    def local_work(self, client):
        self.fail("local_work")
        return super().local_work(client)

    def on_train_start(self):
        self.fail("on_train_start")

    def training_step(self, batch, batch_idx):
        self.fail("training_step")
        loss = super().training_step(batch, batch_idx)
        bad = self.hparams.hook == "loss" and self.visit.round == 1
        return loss * torch.inf if bad else loss

    def make_upload(self, client):
        self.fail("make_upload")
        return super().make_upload(client)

    def server_step(self, server):
        self.fail("server_step")


@pytest.mark.parametrize(
    ("hook", "who"),
    [
        ("local_work", r"client 0 \(125 images\)"),
        ("on_train_start", r"client 0 \(125 images\)"),
        ("training_step", r"client 0 \(125 images\)"),
        ("make_upload", r"client 0 \(125 images\)"),
        ("server_step", "the server"),
    ],
)
def test_errors_name_method_site_and_round(hook, who):
    run = federation(Breaks, clients=2, hook=hook)
    with pytest.raises(RunError, match=rf"Breaks, {who}, round 1: ZeroDivisionError: broken on purpose") as error:
        run.run()
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_loss_that_is_not_finite_ends_the_run():
    run = federation(Breaks, clients=2, hook="loss")
    with pytest.raises(RunError, match=r"Breaks, client 0 .*, round 1: the loss is not finite.*lower the learning"):
        run.run()
    assert run.round == 1


def test_a_view_that_the_pipeline_lacks():
    class Strong(Plain):
        views = {"labelled": {"x": "sideways"}}

    with pytest.raises(RunError, match=r"Strong, client 0 .*no view 'sideways', only weak, test"):
        federation(Strong).run()


# --- randomness, tallies and pseudo-labels


class Noisy(Plain):
    """Adds torch's own noise to the loss's inputs, as dropout does."""

    def training_step(self, batch, batch_idx):
        self.log("noise", torch.rand(()))
        return super().training_step(batch, batch_idx)


def test_torch_noise_belongs_to_the_visit():
    """It repeats, differs between rounds, clients and repeats, and leaves the global generator alone."""
    run = federation(Noisy, clients=2)
    first = run.visits(0)[0]
    state = torch.random.get_rng_state()

    def noise(visit):
        return float(visited(run, visit)[0].sums["noise"][0])

    assert noise(first) == noise(first)
    others = [replace(first, round=1), replace(first, client=1), replace(first, repeat=1)]
    assert len({noise(v) for v in (first, *others)}) == 4
    assert torch.equal(torch.random.get_rng_state(), state)


class Draws(Plain):
    """Draws as a step may: from the method's own generator."""

    def on_train_start(self):
        self.log("start", torch.rand((), generator=self.generator))

    def training_step(self, batch, batch_idx):
        self.log("step", torch.rand((), generator=self.generator))
        return super().training_step(batch, batch_idx)


def test_the_generator_of_a_method_belongs_to_the_visit():
    """It starts anew in every visit, whatever was drawn in the one before."""
    run = federation(Draws, clients=2)
    first = run.visits(0)[0]

    def drawn(visit):
        sums = visited(run, visit)[0].sums
        return tuple(float(sums[name][0]) for name in ("start", "step"))

    others = [replace(first, round=1), replace(first, client=1), replace(first, repeat=1)]
    assert len({number for v in (first, *others) for number in drawn(v)}) == 8
    assert drawn(first) == drawn(first)
    reseeded = federation(Draws, clients=2)
    reseeded.engine.context = replace(reseeded.engine.context, seed=1)
    assert float(visited(reseeded, first)[0].sums["start"][0]) != drawn(first)[0]


def test_passes_are_made_when_their_turn_comes():
    """A function gives an epoch of its own, from the model of that moment; the others are made before."""
    seen = []

    class Rebuilds(Plain):
        def local_work(self, client):
            def rebuilt():
                seen.append(self.trainer.global_step)
                return Pass(self.streams(client.data), steps=1)

            return [*super().local_work(client), rebuilt, rebuilt]

        def on_train_batch_start(self, batch, batch_idx):
            seen.append((self.current_epoch, batch_idx))

    run = federation(Rebuilds)
    visited(run, run.visits(0)[0])
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3), 4, (1, 0), 5, (2, 0)]


def test_streams_of_a_site():
    run = federation(clients=2)
    site = site_of(run, Visit(round=3, client=0))
    index = site.data.labelled.repeat(5)[: 2 * EVAL_BLOCK + 5]
    blocks = list(site.views("test", index))
    assert [len(b) for b in blocks] == [EVAL_BLOCK, EVAL_BLOCK, 5]
    assert torch.equal(torch.cat(blocks), run.data.take("test", index))
    weak = [torch.cat(list(site.views("weak", index, purpose))) for purpose in ("a", "a", "b")]
    assert torch.equal(weak[0], weak[1])
    assert not torch.equal(weak[0], weak[2])


def test_the_server_meets_other_numbers_before_the_first_round_than_in_it():
    """Pre-training and the first server step do not repeat each other's shuffles."""

    class Listens(Plain):
        drawn = []

        def server_step(self, server):
            own = float(torch.rand(1, generator=self.generator))
            self.drawn.append((float(torch.rand(1, generator=server.generator("order"))), own))

    run = federation(Listens, clients=6)
    run.run()
    assert [len(set(numbers)) for numbers in zip(*run.method.drawn, strict=True)] == [1 + ROUNDS] * 2


def tallies(run, index, labels, selected):
    site = site_of(run)
    site.report_pseudo_labels(index, labels, selected)
    return {name: (total / weight).tolist() for name, (total, weight) in site._hidden.taken().items()}


def test_pseudo_labels_are_judged_by_the_hidden_labels():
    """Of 8 images 6 are selected and 4 of them are right; shares are of all 8."""
    run = federation(clients=2, labelled=1)
    index = run.data.client(1).unlabelled[:8]
    labels = run.data.train_labels[index].clone()
    selected = torch.tensor([True] * 6 + [False] * 2)
    labels[[0, 1, 6]] = (labels[[0, 1, 6]] + 1) % 10
    shares = tallies(run, index, labels, selected)
    assert (shares["pseudo/selected"], shares["pseudo/correct"]) == (0.75, 0.5)
    assert sum(shares["pseudo/selected_by_class"]) == pytest.approx(0.75)
    assert sum(shares["pseudo/correct_by_class"]) == pytest.approx(0.5)
    one_of_eight = torch.bincount(labels[selected], minlength=10) / 8
    assert shares["pseudo/selected_by_class"] == pytest.approx(one_of_eight.tolist())
    assert tallies(run, index[:0], labels[:0], selected[:0]) == {}
    assert tallies(run, index, labels, torch.zeros(8, dtype=torch.bool))["pseudo/correct"] == 0


def test_hidden_labels_are_for_declared_oracles_only():
    run = federation(clients=2, labelled=1)
    site = site_of(run, Visit(client=1))
    index = site.data.unlabelled[:4]
    with pytest.raises(RunError, match="uses_oracle"):
        site.oracle(index, run.data.train_labels[index])
    run.method.uses_oracle = True
    assert site.oracle(index, run.data.train_labels[index]).all()


@pytest.mark.parametrize("uses", [False, True])
def test_validation_labels_are_for_methods_that_say_so(uses):
    """They may be many times the labels of the setting."""
    seen = []

    class Looks(Plain):
        uses_validation = uses

        def server_step(self, server):
            seen.append((server.data.validation, server.data.validation_labels))

    run = make_federation(Looks, few_data(2, validation=50), rounds=1)
    run.server_phase(0)
    assert [None if part is None else len(part) for part in seen[0]] == ([50, 50] if uses else [None, None])


def test_tallies_are_means_over_steps_and_clients():
    """The row's ``loss`` is the mean over all batches of all clients; ``batch_size`` weighs."""

    class Logs(Plain):
        def training_step(self, batch, batch_idx):
            self.log("plain", float(batch_idx))
            self.log("weighted", torch.tensor(float(len(batch["labelled"]["y"]))), batch_size=batch_idx + 1)
            return super().training_step(batch, batch_idx)

    run = federation(Logs, clients=1, rounds=1)
    row = run_rows(run)[0]
    assert row["plain"] == (0 + 1 + 2 + 3) / 4
    assert row["weighted"] == pytest.approx((64 * (1 + 2 + 3) + 58 * 4) / 10)
