"""FedDure: the bi-level step against reference numbers in all flag variants, and every switch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods import meta
from methods.base import Batch
from methods.feddure import FedDure

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


def toy_method(case: dict[str, Any], **args: Any) -> FedDure:
    """The case's networks and rates, with plain SGD everywhere."""
    given, flags = case["inputs"], case["flags"]
    args = {
        "creg_lr": given["eta_s"], "freg_lr": given["eta_w"], "freg_input": flags["freg_input"],
        "freg_detach_input": flags["detach_input"], "freg_norm": flags["norm"], **args,
    }  # fmt: skip
    method = FedDure(
        Toy(case["batchnorm"]), 3, freg_hidden=4, lr=given["eta"], optimizer="sgd", freg_optimizer="sgd",
        momentum=0.0, **args,
    ).double()  # fmt: skip
    method.model.load_state_dict(given["theta"], strict=not case["batchnorm"])
    if method.creg is not None:
        method.creg.load_state_dict(given["phi"], strict=not case["batchnorm"])
    if method.freg is not None:
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


def name_of(case: dict[str, Any]) -> str:
    return "-".join([f"bn{case['batchnorm']:d}", *map(str, case["flags"].values())])


def equal(module: nn.Module, expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    state = dict(module.named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(state[name].detach(), value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", ["jvp", "double_backward"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_joint_step(case: dict[str, Any], form: str) -> None:
    """F-reg, C-reg, d, m and the local model after one step, in double precision, in every variant."""
    method, out = toy_method(case, freg_gradient=form), case["outputs"]
    method._tally = {}
    method.local_step(batch_of(case), 0, method.configure_optimizers())
    freg = method.freg
    assert freg is not None
    for layer, number in (("linear1", "0"), ("linear2", "2")):
        for part in ("weight", "bias"):
            ours = freg.get_parameter(f"{number}.{part}").detach()
            torch.testing.assert_close(ours, out["freg_after"][f"{layer}.{part}"], rtol=1e-12, atol=1e-12)
    equal(method.creg, out["phi_after"])
    equal(method.model, out["theta_after"])
    assert float(method.tallied("creg/d")) == pytest.approx(out["d_old_minus_new"], rel=1e-9)
    assert float(method.tallied("freg/m")) == pytest.approx(float(out["instance_weights_m"].mean()), rel=1e-12)
