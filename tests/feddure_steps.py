"""Joint steps of FedDure on the reference's toy networks, and small federations."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from federations import make_data, plain_fabric, sums_of
from golden_files import load
from methods.base import Batch
from methods.feddure import FedDure


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
