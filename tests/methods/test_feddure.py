"""FedDure: the bi-level step against reference numbers, its look-ahead, its arguments, and its ablations."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from feddure_steps import (
    BATCHNORM,
    CASES,
    PLAIN,
    Toy,
    batch_of,
    descend,
    equal,
    federation,
    joint,
    name_of,
    step,
    take_steps,
    toy_method,
)
from federations import contract_federation, rounds_until
from methods import models
from methods.ablations.feddure import (
    AsWritten,
    DifferentiableWeights,
    FRegOnLogits,
    NormalisedWeights,
    Released,
    WithoutCReg,
    WithoutFReg,
    released_rate,
)
from methods.base import Batch
from methods.feddure import FedDure, WeightNet, directional_derivative, look_ahead, stateless

FLAGS = {
    ("softmax", True, "none"): FedDure,
    ("logits", True, "none"): FRegOnLogits,
    ("softmax", False, "none"): DifferentiableWeights,
    ("logits", False, "none"): AsWritten,
    ("softmax", True, "sum"): NormalisedWeights,
}


SETTINGS: list[dict[str, Any]] = [
    {"feedback_weight": -1.0},
    {"feedback_weight": 0.5},
    {"creg_lr": 0.05},
    {"freg_lr": 0.05},
    {"threshold": 0.6},
    {"unsup_targets": "soft"},
    {"unsup_targets": "soft", "temperature": 0.4},
    {"unsup_weight": 2.0},
    {"unsup_ramp": 20},
    {"optimizer": "adam"},
    {"weight_decay": 0.1},
    {"clip_norm": 0.01},
    {"prox_mu": 0.5},
    {"cls": WithoutCReg},
    {"cls": WithoutFReg},
    {"cls": Released},
    {"cls": Released, "warmup_steps": 3},
    {"cls": Released, "creg_wait": 0},
    *({"cls": cls} for cls in FLAGS.values() if cls is not FedDure),
]

READINGS = [(case, FLAGS[flags]) for case in CASES if (flags := tuple(case["flags"].values())) in FLAGS]


@pytest.mark.parametrize(("case", "cls"), READINGS, ids=lambda v: name_of(v) if isinstance(v, dict) else v.__name__)
def test_joint_step(case: dict[str, Any], cls: type[FedDure]) -> None:
    """F-reg, C-reg, d, m and the local model after one step, in double precision."""
    method, out = toy_method(case, cls), case["outputs"]
    take_steps(method, [batch_of(case)])
    for layer, number in (("linear1", "0"), ("linear2", "2")):
        for part in ("weight", "bias"):
            ours = method.freg.get_parameter(f"{number}.{part}").detach()
            torch.testing.assert_close(ours, out["freg_after"][f"{layer}.{part}"], rtol=1e-12, atol=1e-12)
    equal(method.creg, out["phi_after"])
    equal(method.model, out["theta_after"])
    assert float(method.tallied("creg/d")) == pytest.approx(out["d_old_minus_new"], rel=1e-9)
    assert float(method.tallied("freg/m")) == pytest.approx(float(out["instance_weights_m"].mean()), rel=1e-12)


def test_constant_regulators_leave_fixmatch_without_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """d = 0, all m_i = 1/4: the FixMatch of LocalSSL, threshold 0, weight 1/4; with a drawn F-reg another model."""

    def run(method: str, **args: Any) -> Federation:
        made = contract_federation(method, precision="64-true", steps_per_visit=2, unlabelled_bs=20, **args)
        rounds_until(made, 1)
        return made

    drawn = run("feddure", feedback_weight=0.0)

    def constant(freg: WeightNet, generator: Any = None) -> None:
        with torch.no_grad():
            for parameter in freg.parameters():
                parameter.zero_()
            freg[2].bias.fill_(-math.log(3.0))

    monkeypatch.setattr(WeightNet, "reset_parameters", constant)
    regulated = run("feddure", feedback_weight=0.0, freg_lr=0.0)
    base = run("local_ssl", threshold=0.0, unsup_weight=0.25)
    for name in base.method.names("shared"):
        torch.testing.assert_close(regulated.server[name], base.server[name], rtol=1e-7, atol=1e-10)
        assert not torch.allclose(drawn.server[name], base.server[name], rtol=1e-7, atol=1e-10)


def test_forcing_d_to_zero_leaves_the_local_model_alone() -> None:
    """The local model moves as without feedback, C-reg as always."""
    without, free = step(PLAIN, feedback_weight=0.0), step(PLAIN)
    equal(without.creg, dict(free.creg.named_parameters()))
    out = PLAIN["outputs"]
    rate = PLAIN["inputs"]["eta"]
    expected = {n: PLAIN["inputs"]["theta"][n] - rate * (out["g_s"][n] + out["g_u"][n]) for n in out["g_s"]}
    equal(without.model, expected)


def test_the_reward_is_of_the_stepped_network_under_autocast_too() -> None:
    """Autocast keeps casts of parameters for as long as it lasts, and C-reg moves while it does."""
    method = toy_method(PLAIN, creg_lr=0.5).float()
    method._engine.autocast = lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    given = {
        stream: {k: v.float() if v.is_floating_point() else v for k, v in fields.items()}
        for stream, fields in batch_of(PLAIN).items()
    }
    before = copy.deepcopy(method.creg)
    take_steps(method, [given])
    losses = []
    for creg in (before, method.creg):
        with torch.no_grad(), method.autocast():
            losses.append(F.cross_entropy(creg(given["labelled"]["x"]), given["labelled"]["y"]))
    assert losses[0] != losses[1]
    assert torch.equal(method.tallied("creg/d"), losses[0] - losses[1])


@pytest.mark.parametrize("kind", ["labelled", "unlabelled"])
def test_one_kind_of_images_moves_the_local_model_only(kind: str) -> None:
    """The regulators rest where a client has no labels, or nothing but labels."""
    method = toy_method(PLAIN)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    take_steps(method, [{kind: batch_of(PLAIN)[kind]}] * 2)
    moved = {name.split(".")[0] for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"model"}


def test_freg_is_drawn_from_the_stream_of_the_visit() -> None:
    """Torch's global generator is neither read nor moved; the same visit draws the same numbers."""
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        method = FedDure(Toy(False), 3)
        method.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(len(drawn))
        state = torch.get_rng_state()
        method.on_train_start()
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append(torch.cat([p.detach().flatten() for p in method.freg.parameters()]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_every_argument_and_variant_does_something() -> None:
    """Three steps end elsewhere with each of these settings, in the local model or in a regulator."""
    ends = []
    for args in [{}, *SETTINGS]:
        method = step(BATCHNORM, 3, **args)
        state = [p.detach() for part in (method.model, method.creg, method.freg) for p in part.parameters()]
        ends.append(torch.cat([p.flatten() for p in state]))
        assert bool(torch.isfinite(ends[-1]).all())
    for i, end in enumerate(ends):
        same = [j for j in range(i) if torch.allclose(end, ends[j], rtol=1e-10, atol=1e-12)]
        assert not same, f"{([{}, *SETTINGS])[i]} ends where {([{}, *SETTINGS])[same[0]]} does"


def test_where_the_state_lives() -> None:
    """The local model and its batch-norm statistics travel, C-reg and F-reg do not; F-reg is the client's own."""
    run = federation()
    run.run_round(0)
    assert all(name.startswith("model.") for name in run.server)
    assert set(run.clients[0].tensors) == {f"freg.{n}" for n in run.method.freg.state_dict()}
    weights = [run.clients[k].tensors["freg.0.weight"] for k in (0, 1)]
    assert not torch.allclose(*weights, atol=1e-2)
    assert all(not any(states) for states in run.clients[0].optimizers)


# --- the look-ahead

LR = 0.3
Objective = Callable[[Tensor], Tensor]


def meta_gradient(
    net: nn.Module, inner: Objective, outer: Objective, u: Tensor, x: Tensor, wrt: Sequence[Tensor], lr: float
) -> tuple[Tensor, ...]:
    """The gradient of the look-ahead."""
    return torch.autograd.grad(look_ahead(net, inner, u, net(u), outer, x, lr), list(wrt))


def by_double_backward(
    net: nn.Module, inner: Objective, outer: Objective, u: Tensor, x: Tensor, wrt: Sequence[Tensor], lr: float
) -> tuple[Tensor, ...]:
    """The same, by differentiating through the step itself."""
    own = {name: p for name, p in net.named_parameters() if p.requires_grad}
    steps = torch.autograd.grad(inner(stateless(net, u)), list(own.values()), create_graph=True, materialize_grads=True)
    ahead = {n: own[n] - lr * g for n, g in zip(own, steps, strict=True)}
    return torch.autograd.grad(outer(stateless(net, x, ahead)), list(wrt))


def problem(name: str) -> tuple[nn.Module, WeightNet, Tensor, Tensor, Objective, Objective]:
    """Network, F-reg, images of the inner and the outer objective, and these."""
    torch.manual_seed(3)
    if name == "resnet9":
        net: nn.Module = models.build("resnet9", 4)
        u, x = torch.randn(6, 3, 8, 8), torch.randn(3, 3, 8, 8)
    else:
        norm = nn.BatchNorm1d(6) if name == "batchnorm" else nn.LayerNorm(6)
        net = nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, 4))
        u, x = torch.randn(6, 5), torch.randn(3, 5)
    weights = WeightNet(4, 7).double()
    labels, y = torch.tensor([0, 3, 1, 2, 2, 0]), torch.tensor([1, 0, 3])

    def inner(z: Tensor) -> Tensor:
        return (weights(z) * F.cross_entropy(z, labels, reduction="none")).mean()

    def outer(z: Tensor) -> Tensor:
        return F.cross_entropy(z, y)

    return net.double(), weights, u.double(), x.double(), inner, outer


@pytest.mark.parametrize("name", ["layernorm", "batchnorm", "resnet9"])
def test_the_gradient_is_that_of_a_double_backward_pass(name: str) -> None:
    """Relative difference below 1e-12, with batch norm in training mode."""
    net, weights, u, x, inner, outer = problem(name)
    wrt = list(weights.parameters())
    fast, slow = (form(net, inner, outer, u, x, wrt, LR) for form in (meta_gradient, by_double_backward))
    size = torch.cat([g.flatten() for g in slow]).norm()
    assert float(size) > 1e-8
    difference = torch.cat([(a - b).flatten() for a, b in zip(fast, slow, strict=True)]).norm()
    assert float(difference / size) < 1e-12


def test_directional_derivative_is_that_of_finite_differences() -> None:
    """Forward mode against a central difference along a random direction."""
    net, _, u, *_ = problem("batchnorm")
    own = dict(net.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in own.items()}
    ends = [
        stateless(net, u, {name: p.detach() + e * direction[name] for name, p in own.items()}) for e in (1e-5, -1e-5)
    ]
    expected = (ends[0] - ends[1]).detach() / 2e-5
    torch.testing.assert_close(directional_derivative(net, u, direction), expected, rtol=1e-6, atol=1e-8)


# --- ablations


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
