"""FedDure: the bi-level step against reference numbers, its arguments, and its variants in closed form."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from datamodules.common.errors import ConfigError
from federations import contract_federation, make_data, plain_fabric, rounds_until, visited
from methods.ablations.feddure import AsWritten, Released, WithoutCReg, WithoutFReg, released_rate
from methods.ablations.local_ssl import WithoutRegulators
from methods.base import Batch, Tally, Visit
from methods.feddure import FedDure, WeightNet, stateless
from methods.local_ssl import LocalSSL

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/feddure/paper_step_sgd.json").read_text())


def to_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: to_tensors(v) for k, v in value.items()}
    if not isinstance(value, list):
        return value
    dtype = torch.int64 if value and isinstance(value[0], int) else torch.float64
    return torch.tensor(value, dtype=dtype)


CASES = [to_tensors(case) for case in GOLDEN["cases"]]


class Toy(nn.Module):
    """The reference network 4-5-3 with tanh."""

    def __init__(self, batchnorm: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)
        self.bn = nn.BatchNorm1d(5) if batchnorm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.bn(self.fc1(x))))


def toy_method(case: dict[str, Any], cls: type[FedDure] = FedDure, **args: Any) -> FedDure:
    """The case's networks and rates, with plain SGD everywhere."""
    given = case["inputs"]
    defaults = {
        "freg_hidden": 4, "optimizer": "sgd", "momentum": 0.0, "lr": given["eta"], "creg_lr": given["eta_s"],
        "freg_lr": given["eta_w"],
    }  # fmt: skip
    method = cls(Toy(case["batchnorm"]), 3, **{**defaults, **args}).double()
    method.model.load_state_dict(given["theta"], strict=not case["batchnorm"])
    method.creg.load_state_dict(given["phi"], strict=not case["batchnorm"])
    names = {"linear1": "0", "linear2": "2"}
    renamed = {f"{names[k.split('.')[0]]}.{k.split('.')[1]}": v for k, v in given["freg"].items()}
    method.freg.load_state_dict(renamed)
    return method


def batch_of(case: dict[str, Any]) -> Batch:
    given = case["inputs"]
    return {
        "unlabelled": {"weak": given["weak"], "strong": given["strong"]},
        "labelled": {"x": given["x"], "y": given["y"]},
    }


def take_steps(method: FedDure, batches: list[Batch], first: int = 0) -> None:
    """Joint steps with the networks as they stand, the first of them number ``first`` of the visit."""
    method._engine.tally = Tally()
    method.joint_steps = first
    fit = Fit(method, [])
    for number, batch in enumerate(batches):
        method.on_train_batch_start(batch, number)
        fit.step(batch, number)
        fit.steps += 1


def name_of(case: dict[str, Any]) -> str:
    return "-".join([f"bn{case['batchnorm']:d}", *map(str, case["flags"].values())])


def equal(module: nn.Module, expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    state = dict(module.named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(state[name].detach(), value, rtol=tolerance, atol=tolerance)


FLAGS = {("softmax", True, "none"): FedDure, ("logits", False, "none"): AsWritten}
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


def step(case: dict[str, Any], count: int = 1, cls: type[FedDure] = FedDure, **args: Any) -> FedDure:
    """The method after some joint steps on the case's batch."""
    method = toy_method(case, cls, **args)
    take_steps(method, [batch_of(case)] * count)
    return method


def descend(net: nn.Module, loss: Tensor, rate: float) -> None:
    """Plain gradient descent, written out."""
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter -= rate * gradient


def joint(net: nn.Module, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Logits of labelled, weak and strong images, from one forward pass."""
    parts = [given["x"], given["weak"], given["strong"]]
    return net(torch.cat(parts)).split([len(p) for p in parts])


BATCHNORM = next(c for c in CASES if c["batchnorm"] and name_of(c).endswith("softmax-True-none"))
PLAIN = next(c for c in CASES if not c["batchnorm"] and name_of(c).endswith("softmax-True-none"))


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
    {"cls": AsWritten},
]


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


def test_logged_gradients_are_those_of_the_reference() -> None:
    """At the logits, the two logged norms equal those of autograd."""
    given, method = PLAIN["inputs"], toy_method(PLAIN)
    x, weak, strong = joint(method.model, given)
    (g_s,) = torch.autograd.grad(F.cross_entropy(x, given["y"]), x, retain_graph=True)
    (g_d,) = torch.autograd.grad(F.cross_entropy(strong, weak.argmax(dim=1)), strong)
    take_steps(method, [batch_of(PLAIN)])
    d = PLAIN["outputs"]["d_old_minus_new"]
    assert float(method.tallied("gradient/labelled")) == pytest.approx(float(g_s.norm()))
    assert float(method.tallied("gradient/feedback")) == pytest.approx(abs(d) * float(g_d.norm()))


class Norm(nn.Module):
    """A small network with batch norm for the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(196, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def federation(rounds: int = 2, cls: type[FedDure] = FedDure, **args: Any) -> Federation:
    """Six clients, real digits."""
    torch.manual_seed(0)
    method, data = cls(Norm(), 10, **args), make_data("all_clients")
    return Federation(method, data, data.roster(0), plain_fabric(), rounds, seed=0)


def test_where_the_state_lives() -> None:
    """The local model and its batch-norm statistics travel, C-reg and F-reg do not; F-reg is the client's own."""
    run = federation()
    run.run_round(0)
    assert all(name.startswith("model.") for name in run.server)
    assert set(run.clients[0].tensors) == {f"freg.{n}" for n in run.method.freg.state_dict()}
    weights = [run.clients[k].tensors["freg.0.weight"] for k in (0, 1)]
    assert not torch.allclose(*weights, atol=1e-2)
    assert all(not any(states) for states in run.clients[0].optimizers)


def test_aggregation_counts_all_images_and_all_tensors() -> None:
    """Weights n_s + n_u; running statistics are averaged with the parameters."""
    run = federation()
    uploads, _, _ = run.run_visits(run.visits(0))
    sizes = [run.data.client(k).size for k in range(6)]
    assert [u.weight for u in uploads] == sizes
    run.method.aggregate(uploads)
    name = "model.body.1.running_mean"
    expected = sum(n * u.tensors[name].double() for n, u in zip(sizes, uploads, strict=True)) / sum(sizes)
    torch.testing.assert_close(run.method.tensors("shared")[name].double(), expected, rtol=1e-6, atol=1e-8)
    assert float(expected.abs().max()) > 0


def visit_twice(**args: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], Federation]:
    """Client 0's F-reg after its first visit, and all regulators at the beginning of its second."""
    run = federation(**args)
    visit = Visit(client=0, size=run.data.client(0).size)
    _, kept = visited(run, visit)
    first, seen = {n: t.clone() for n, t in kept.tensors.items()}, {}
    method = run.method
    original = method.on_train_start

    def spy() -> None:
        original()
        seen.update(method.tensors("personal", "local"))

    method.on_train_start = spy
    visited(run, Visit(round=1, client=0, size=visit.size, first=False), kept)
    run.clients[0] = kept
    return first, seen, run


def test_what_persists_between_visits() -> None:
    """C-reg starts from the global model again; F-reg keeps its weights and begins with a new Adam."""
    first, seen, run = visit_twice()
    assert first and all(torch.equal(value, seen[name]) for name, value in first.items())
    for name, value in run.server.items():
        assert torch.equal(value, seen[name.replace("model.", "creg.", 1)])
    assert not run.clients[0].optimizers


def test_supervised_steps_leave_the_regulators_alone() -> None:
    """Released visit: 5 + 5 steps of one Adam; C-reg moves in the joint ones only, the first two have rate 0."""
    run = federation(cls=Released, lr=6e-4, supervised_steps=5)
    method, before, rates, steps = run.method, [], [], []
    starts = method.on_train_batch_start

    def at_start(batch: Batch, number: int) -> None:
        starts(batch, number)
        before[:] = [p.detach().clone() for p in method.creg.parameters()]

    def at_end(outputs: Any, batch: Batch, number: int) -> None:
        optimizer = method.trainer.optimizers[0]
        moved = any(not torch.equal(a, b) for a, b in zip(before, method.creg.parameters(), strict=True))
        rates.append((optimizer.param_groups[0]["lr"] / 6e-4, moved))
        steps.append(float(next(iter(optimizer.state.values()))["step"]))

    method.on_train_batch_start, method.on_train_batch_end = at_start, at_end
    visited(run, Visit(client=0, size=run.data.client(0).size))
    assert [r for r, _ in rates] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert [moved for _, moved in rates] == [False] * 7 + [True] * 3
    assert steps == list(range(1, 11))


def test_momentum_that_is_kept_is_the_local_models_alone() -> None:
    """``reset_momentum=false`` says nothing about the regulators' optimisers."""
    _, _, run = visit_twice(reset_momentum=False)
    local, creg, freg = run.clients[0].optimizers
    assert local and all(float(state["step"]) == 5 for state in local)
    assert not any(creg) and not any(freg)


def test_the_rate_of_creg_does_not_follow_that_of_the_local_model() -> None:
    """It is the paper's unless it is given."""
    for args, expected in (({"lr": 0.0045}, 5e-4), ({"lr": 0.0045, "creg_lr": 0.003}, 0.003)):
        local, creg, _ = FedDure(Norm(), 10, **args).configure_optimizers()
        assert (local.param_groups[0]["lr"], creg.param_groups[0]["lr"]) == (0.0045, expected)


def test_without_regulators_only_the_batches_are_feddures() -> None:
    """The step is FixMatch's, in batches of FedDure's sizes: four of a client with few labels, in place of two."""
    data = make_data("all_clients")
    method = WithoutRegulators(Norm(), threshold=0.0)
    site = data.client(0)
    sizes = [made.streams(site)["unlabelled"].batch_size for made in (method, federation().method, LocalSSL(Norm()))]
    assert sizes[0] == sizes[1] != sizes[2]
    assert method.automatic_optimization


def test_the_feedback_term_alone() -> None:
    """g_s + g_d: the unlabelled term has no part in the step."""
    run = federation(unsup_weight=0.0)
    uploads, *_ = run.run_visits(run.visits(0)[:1])
    assert all(bool(torch.isfinite(v).all()) for v in uploads[0].tensors.values())


def test_frozen_and_unused_parameters() -> None:
    """They stay as they are, and the others learn."""

    class Partly(Toy):
        def __init__(self) -> None:
            super().__init__(False)
            self.fc1.bias.requires_grad_(False)
            self.unused = nn.Linear(2, 2)

    torch.manual_seed(0)
    method = FedDure(Partly(), 3).double()
    before = {k: v.clone() for k, v in method.state_dict().items()}
    take_steps(method, [batch_of(PLAIN)])
    still = {k for k, v in method.state_dict().items() if torch.equal(v, before[k])}
    fixed = {"fc1.bias", "unused.weight", "unused.bias"}
    assert still == {f"{net}.{name}" for net in ("model", "creg") for name in fixed}


def test_ranges() -> None:
    """The message says which values are allowed; the released schedule needs a number of steps."""
    with pytest.raises(ConfigError, match="steps_per_visit=None is out of range: a number, for the schedule"):
        Released(Toy(False), 3, steps_per_visit=None)
    with pytest.raises(ConfigError, match="creg_wait=-1 is out of range: from 0"):
        Released(Toy(False), 3, creg_wait=-1)
    with pytest.raises(ConfigError, match="freg_hidden=0 is out of range: from 1"):
        FedDure(Toy(False), 3, freg_hidden=0)


def test_weights_keep_their_precision_under_autocast() -> None:
    """F-reg's weights of similar images differ by less than bfloat16 resolves."""
    torch.manual_seed(0)
    method, logits = FedDure(Norm(), 10), torch.randn(90, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = method.image_weights(logits)
    assert torch.equal(weights, method.image_weights(logits)) and len(weights.unique()) == 90


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
