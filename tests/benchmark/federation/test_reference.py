"""The reference engine: equal to plain torch, optimisers in their scopes, errors that say where."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.federation.fit import Fit
from datamodules.base import SiteData
from datamodules.common.errors import RunError
from datamodules.common.streams import generator
from federations import SIDE, Unaugmented, few_federation, run_rows, visited
from methods import models

ROUNDS = 2


# --- the same as plain torch


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
    assert all(torch.equal(v, one.server[k]) for k, v in both.server.items())
    for state in one.clients.values():
        adam, sgd = state.optimizers
        assert not any(adam)
        assert all(set(own) == {"momentum_buffer"} for own in sgd)
    one.method.visit = one.visits(1)[0]
    adam, sgd = Fit(one.method, one.clients[0].optimizers).optimizers
    assert not adam.state and all(sgd.state[p]["momentum_buffer"].any() for p in sgd.param_groups[0]["params"])
    with pytest.raises(RunError, match=r"Both, client 0 .*optimizer_scopes names 'shared', 'personal'"):
        few_federation(Both, clients=2).run()
