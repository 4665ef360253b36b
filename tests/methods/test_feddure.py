"""FedDure: the bi-level step against reference numbers, its look-ahead, its arguments, and its ablations."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.fit import Fit
from federations import sums_of
from golden_files import load
from methods import models
from methods.ablations.feddure import (
    AsWritten,
    DifferentiableWeights,
    FRegOnLogits,
    NormalisedWeights,
    WithoutCReg,
    released_rate,
)
from methods.base import Batch
from methods.feddure import FedDure, directional_derivative, stateless

FLAGS = {
    ("softmax", True, "none"): FedDure,
    ("logits", True, "none"): FRegOnLogits,
    ("softmax", False, "none"): DifferentiableWeights,
    ("logits", False, "none"): AsWritten,
    ("softmax", True, "sum"): NormalisedWeights,
}


def to_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: to_tensors(v) for k, v in value.items()}
    if not isinstance(value, list):
        return value
    dtype = torch.int64 if value and isinstance(value[0], int) else torch.float64
    return torch.tensor(value, dtype=dtype)


CASES = [to_tensors(case) for case in load("feddure/paper_step_sgd")["cases"]]


class Toy(nn.Module):
    """The reference network 4-5-3 with tanh."""

    def __init__(self, batchnorm: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)
        self.bn = nn.BatchNorm1d(5) if batchnorm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.bn(self.fc1(x))))


def our_names(freg: dict[str, Tensor]) -> dict[str, Tensor]:
    """F-reg's parameters by their names here."""
    return {name.replace("linear1", "0").replace("linear2", "2"): value for name, value in freg.items()}


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
    method.freg.load_state_dict(our_names(given["freg"]))
    return method


def batch_of(case: dict[str, Any]) -> Batch:
    given = case["inputs"]
    return {
        "unlabelled": {"weak": given["weak"], "strong": given["strong"]},
        "labelled": {"x": given["x"], "y": given["y"]},
    }


def take_steps(method: FedDure, batches: list[Batch], first: int = 0) -> None:
    """Joint steps with the networks as they stand, the first of them number ``first`` of the visit."""
    sums_of(method)
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


PLAIN = next(c for c in CASES if not c["batchnorm"] and name_of(c).endswith("softmax-True-none"))


READINGS = [(case, FLAGS[flags]) for case in CASES if (flags := tuple(case["flags"].values())) in FLAGS]


@pytest.mark.parametrize(("case", "cls"), READINGS, ids=lambda v: name_of(v) if isinstance(v, dict) else v.__name__)
def test_joint_step(case: dict[str, Any], cls: type[FedDure]) -> None:
    """F-reg, C-reg, d, m and the local model after one step, in double precision."""
    method, out = toy_method(case, cls), case["outputs"]
    take_steps(method, [batch_of(case)])
    equal(method.freg, our_names(out["freg_after"]))
    equal(method.creg, out["phi_after"])
    equal(method.model, out["theta_after"])
    assert float(method.tallied("creg/d")) == pytest.approx(out["d_old_minus_new"], rel=1e-9)
    assert float(method.tallied("freg/m")) == pytest.approx(float(out["instance_weights_m"].mean()), rel=1e-12)


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


# --- the look-ahead


def test_the_derivative_through_attention() -> None:
    """torch's fused attention has no forward-mode derivative; the look-ahead does without it."""
    torch.manual_seed(0)
    net, x = models.build("vit_tiny_scratch", 2, image_size=16).double(), torch.randn(2, 3, 16, 16).double()
    direction = {name: torch.randn_like(p) for name, p in net.named_parameters()}

    def moved(step: float) -> Tensor:
        return stateless(net, x, {name: p + step * direction[name] for name, p in net.named_parameters()})

    slope = (moved(1e-6) - moved(-1e-6)).detach() / 2e-6
    torch.testing.assert_close(directional_derivative(net, x, direction), slope, rtol=1e-5, atol=1e-5)


def test_released_rates() -> None:
    """The four sequences of learning rates: local model and C-reg, CIFAR-10 and CINIC-10."""
    cifar = [released_rate(t, 10, 5) for t in range(10)]
    assert cifar == pytest.approx([t / 10 for t in range(10)])
    assert [released_rate(t, 10, 5, wait=2) for t in range(5)] == pytest.approx([0, 0, 2 / 12, 3 / 12, 4 / 12])
    cinic = [released_rate(t, 100, 10) for t in range(110)]
    assert cinic == pytest.approx([t / 100 for t in range(100)] + [1, 0] * 5)
    assert [released_rate(t, 100, 10, wait=0) for t in range(10)] == pytest.approx([t / 100 for t in range(10)])
    assert [released_rate(t, 1, 5) for t in range(1, 6)] == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0])


def descend(net: nn.Module, loss: Tensor, rate: float) -> None:
    """Plain gradient descent, written out."""
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter -= rate * gradient


def test_without_creg() -> None:
    """F-reg looks ahead with the local model, in separate forward passes; the step follows g_s + g_u."""
    case = next(c for c in CASES if c["batchnorm"])
    given, method = case["inputs"], toy_method(case, WithoutCReg)
    take_steps(method, [batch_of(case)])
    fresh = toy_method(case)
    net, freg, y = fresh.model, fresh.freg, given["y"]
    parts = [given["x"], given["weak"], given["strong"]]
    x, weak, strong = net(torch.cat(parts)).split([len(part) for part in parts])  # in one forward pass
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
    assert int(method.model.bn.num_batches_tracked) == 1  # the look-ahead's passes leave no trace
