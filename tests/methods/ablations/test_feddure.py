"""FedDure's ablations in closed form: without a regulator, as written, as released with its rates."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from feddure_steps import (
    BATCHNORM,
    PLAIN,
    batch_of,
    descend,
    equal,
    joint,
    name_of,
    step,
    take_steps,
    toy_method,
)
from methods.ablations.feddure import Released, WithoutCReg, WithoutFReg, released_rate
from methods.base import Batch
from methods.feddure import stateless


@pytest.mark.parametrize("case", [PLAIN, BATCHNORM], ids=name_of)
def test_without_creg(case: dict[str, Any]) -> None:
    """F-reg looks ahead with the local model, in separate forward passes; the step follows g_s + g_u."""
    given, method = case["inputs"], step(case, cls=WithoutCReg)
    fresh = toy_method(case)
    net, freg, y = fresh.model, fresh.freg, given["y"]
    x, weak, strong = joint(net, given)
    labels = weak.argmax(dim=1)
    alone = net(given["strong"])
    weights = freg(alone.detach().softmax(dim=1))
    inner = (weights * F.cross_entropy(alone, labels, reduction="none")).mean()
    own = dict(net.named_parameters())
    steps = torch.autograd.grad(inner, list(own.values()), create_graph=True)
    ahead = {n: p - given["eta_s"] * g for (n, p), g in zip(own.items(), steps, strict=True)}
    descend(freg, F.cross_entropy(stateless(net, given["x"], ahead), y), given["eta_w"])
    m = freg(strong.detach().softmax(dim=1)).detach()
    loss = F.cross_entropy(x, y) + (m * F.cross_entropy(strong, labels, reduction="none")).mean()
    descend(net, loss, given["eta"])
    equal(method.freg, dict(freg.named_parameters()))
    equal(method.model, dict(net.named_parameters()))
    equal(method.creg, dict(fresh.creg.named_parameters()))  # it rests
    assert method.tallied("creg/d") is None


@pytest.mark.parametrize("case", [PLAIN, BATCHNORM], ids=name_of)
def test_without_freg(case: dict[str, Any]) -> None:
    """A mask at 0.6 instead of m; C-reg learns from every pseudo-label alike; g_d is as before."""
    given, method = case["inputs"], step(case, cls=WithoutFReg, threshold=0.6)
    fresh = toy_method(case)
    net, creg, y = fresh.model, fresh.creg, given["y"]
    x, weak, strong = joint(net, given)
    labels, mask = weak.argmax(dim=1), weak.softmax(dim=1).amax(dim=1) >= 0.6
    assert 0 < int(mask.sum()) < len(mask)
    old = F.cross_entropy(creg(given["x"]), y)
    descend(creg, F.cross_entropy(creg(given["strong"]), labels), given["eta_s"])
    d = (old - F.cross_entropy(creg(given["x"]), y)).detach()
    losses = F.cross_entropy(strong, labels, reduction="none")
    descend(net, F.cross_entropy(x, y) + (mask * losses).sum() / len(mask) + d * losses.mean(), given["eta"])
    equal(method.creg, dict(creg.named_parameters()))
    equal(method.model, dict(net.named_parameters()))
    equal(method.freg, dict(fresh.freg.named_parameters()))  # it rests
    assert method.tallied("freg/m") is None


RELEASE: dict[str, Any] = {
    "threshold": 0.6, "unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20, "feedback_weight": -1.0,
}  # fmt: skip


class ConstantRates(Released):
    """The released step alone."""

    def configure_optimizers(self) -> Any:
        return WithoutFReg.configure_optimizers(self)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        WithoutFReg.on_train_batch_start(self, batch, batch_idx)


@pytest.mark.parametrize("number", [0, 3, 30])
def test_released_step(number: int) -> None:
    """Soft masked targets on a ramp, C-reg on the weak view, d = new - old, feedback on the strong view's argmax."""
    case = BATCHNORM
    given = case["inputs"]
    method = toy_method(case, ConstantRates, **RELEASE)
    net, creg = (copy.deepcopy(m) for m in (method.model, method.creg))
    take_steps(method, [batch_of(case)], first=number)
    x, weak, strong = joint(net, given)
    p, y = weak.softmax(dim=1).detach(), given["y"]
    mask = p.amax(dim=1) >= 0.6
    old = F.cross_entropy(creg(given["x"]), y)
    descend(creg, F.cross_entropy(creg(given["weak"]), p.argmax(dim=1)), given["eta_s"])
    d = (F.cross_entropy(creg(given["x"]), y) - old).detach()
    soft = (mask * -(p * strong.log_softmax(dim=1)).sum(dim=1)).mean()
    loss = F.cross_entropy(x, y) + 8 * min(1, (number + 1) / 20) * soft
    descend(net, loss + d * F.cross_entropy(strong, strong.argmax(dim=1)), given["eta"])
    equal(method.creg, dict(creg.named_parameters()))
    equal(method.model, dict(net.named_parameters()))


@pytest.mark.parametrize("supervised_steps", [1, 4])
def test_rates_of_the_released_schedule(supervised_steps: int) -> None:
    """The local model's counts all steps of the visit, C-reg's the joint ones; F-reg's stays."""
    method = toy_method(PLAIN, Released, warmup_steps=2, creg_wait=2, lr=0.5, creg_lr=0.25, freg_lr=0.125)
    given = batch_of(PLAIN)
    supervised = {"beside": given["unlabelled"], "labelled": given["labelled"]}
    rates = []

    def at_end(outputs: Any, batch: Batch, number: int) -> None:
        rates.append([float(optimizer.param_groups[0]["lr"]) for optimizer in method.trainer.optimizers])

    method.on_train_batch_end = at_end
    take_steps(method, [supervised] * supervised_steps + [given] * 4)
    local, creg, freg = zip(*rates, strict=True)
    assert local == pytest.approx([0.5 * released_rate(t, 2, 5) for t in range(supervised_steps + 4)])
    assert creg[supervised_steps:] == pytest.approx([0, 0, 0.25 * 2 / 4, 0.25 * 3 / 4])
    assert set(freg) == {0.125}


def test_released_rates() -> None:
    """The four sequences of learning rates: local model and C-reg, CIFAR-10 and CINIC-10."""
    cifar = [released_rate(t, 10, 5) for t in range(10)]
    assert cifar == pytest.approx([t / 10 for t in range(10)])
    assert [released_rate(t, 10, 5, wait=2) for t in range(5)] == pytest.approx([0, 0, 2 / 12, 3 / 12, 4 / 12])
    cinic = [released_rate(t, 100, 10) for t in range(110)]
    assert cinic == pytest.approx([t / 100 for t in range(100)] + [1, 0] * 5)
    assert [released_rate(t, 100, 10, wait=0) for t in range(10)] == pytest.approx([t / 100 for t in range(10)])
    assert [released_rate(t, 1, 5) for t in range(1, 6)] == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0])
