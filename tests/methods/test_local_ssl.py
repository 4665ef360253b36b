"""LocalSSL: batch rules of the released clients, objectives in closed form, and whose batch statistics they use."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from golden_files import load
from methods.ablations.local_ssl import OwnStatistics
from methods.base import Batch
from methods.feddure import FedDure
from methods.local_ssl import LocalSSL, unlabelled_batch

SIZES = load("feddure/batch_sizes")["outputs"]
CLIENTS = {"FedDureClientSSL": FedDure, "BaseClientSSL": LocalSSL}


@pytest.mark.parametrize("case", SIZES, ids=lambda c: f"{c['client_class']}-{c['n_labeled']}-{c['n_unlabeled']}")
def test_released_batch_sizes(case: dict[str, Any]) -> None:
    """Unlabelled images per step of both released clients."""
    cls = CLIENTS[case["client_class"]]
    size = unlabelled_batch(case["n_labeled"], case["n_unlabeled"], 10, cls.few_steps, cls.batch_cap)
    assert size == case["unlabeled_bs"]


class Net(nn.Module):
    """Batch norm between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.body(x.flatten(1)))))


def make(cls: type[LocalSSL] = LocalSSL, **args: Any) -> LocalSSL:
    torch.manual_seed(1)
    return cls(Net(), **args).double()


def batch(revealed: bool = False) -> Batch:
    """Four labelled and eight unlabelled samples."""
    g = torch.Generator().manual_seed(5)
    labelled = {"x": torch.randn(4, 4, generator=g).double() * 3, "y": torch.tensor([0, 1, 2, 1])}
    weak = torch.randn(8, 4, generator=g).double() * 3
    unlabelled = {"weak": weak, "strong": weak + torch.randn(8, 4, generator=g).double()}
    if revealed:
        unlabelled["y"] = torch.tensor([2, 1, 0, 0, 1, 2, 2, 1])
    return {"unlabelled": unlabelled, "labelled": labelled}


def loss_at(method: LocalSSL, given: Batch, step: int = 0) -> Tensor:
    """The loss of the visit's ``step``-th joint step."""
    method.joint_steps = step
    method.on_train_batch_start(given, 0)
    return method.training_step(given, 0)


@pytest.mark.parametrize("step", [0, 4, 40])
def test_objectives_in_closed_form(step: int) -> None:
    """Supervised, UDA with its ramp, FixMatch with and without one; some of the mask is 0, some 1."""
    labelled, unlabelled = batch()["labelled"], batch()["unlabelled"]
    views = [labelled["x"], unlabelled["weak"], unlabelled["strong"]]
    x, weak, strong = make().model(torch.cat(views)).split([4, 8, 8])  # in one forward pass
    supervised = F.cross_entropy(x, labelled["y"])
    p = weak.softmax(dim=1)
    mask = p.amax(dim=1) >= 0.45
    assert 0 < int(mask.sum()) < 8
    log_q = strong.log_softmax(dim=1)
    soft = (mask * -(p * log_q).sum(dim=1)).sum() / 8
    hard = -(mask * log_q[torch.arange(8), p.argmax(dim=1)]).sum() / 8
    ramp = 8 * min(1.0, (step + 1) / 20)
    sharp = (weak / 0.4).softmax(dim=1)
    original = (mask * -(sharp * log_q).sum(dim=1)).sum() / 8
    expected: list[tuple[dict[str, Any], Tensor]] = [
        ({"unsup_weight": 0.0}, supervised),
        ({"unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20}, supervised + ramp * soft),
        ({}, supervised + hard),
        ({"unsup_targets": "soft", "temperature": 0.4}, supervised + original),
        ({"unsup_weight": 8.0, "unsup_ramp": 20}, supervised + ramp * hard),
    ]
    for args, loss in expected:
        made = make(**args, threshold=0.45)
        torch.testing.assert_close(loss_at(made, batch(), step), loss, rtol=1e-12, atol=1e-12)


def test_shared_and_own_batch_statistics() -> None:
    """Their own: every part is normalised by itself, and FedAvg* never runs the unlabelled images."""
    given = batch()
    method = make(OwnStatistics, unsup_weight=0.0)
    assert set(method.outputs(given)) == {"x"}
    assert set(method.outputs(batch(revealed=True))) == {"x", "weak"}
    alone = F.cross_entropy(method.model(given["labelled"]["x"]), given["labelled"]["y"])
    torch.testing.assert_close(loss_at(method, given), alone)
    assert abs(float((loss_at(make(unsup_weight=0.0), given) - alone).detach())) > 1e-3
    fixmatch = make(OwnStatistics, threshold=0.0)
    parts = {n: fixmatch.model(v) for n, v in given["unlabelled"].items()}
    expected = alone + F.cross_entropy(parts["strong"], parts["weak"].argmax(dim=1))
    torch.testing.assert_close(loss_at(fixmatch, given), expected)
