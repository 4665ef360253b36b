"""LocalSSL: batch rules of the released clients, objectives in closed form, and how they compose with FedProx."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from datamodules.digits import Digits
from federations import (
    make_data,
    plain_fabric,
    visited,
)
from golden_files import load
from methods.ablations.local_ssl import OwnStatistics, SupervisedSteps
from methods.base import Batch, Visit
from methods.feddure import FedDure
from methods.local_ssl import LocalSSL, unlabelled_batch

SIZES = load("feddure/batch_sizes")["outputs"]
RULES = {
    "FedDureClientSSL": (FedDure.few_steps, FedDure.batch_cap),
    "BaseClientSSL": (LocalSSL.few_steps, LocalSSL.batch_cap),
}


@pytest.mark.parametrize("case", SIZES, ids=lambda c: f"{c['client_class']}-{c['n_labeled']}-{c['n_unlabeled']}")
def test_released_batch_sizes(case: dict[str, Any]) -> None:
    """Unlabelled images per step of both released clients."""
    size = unlabelled_batch(case["n_labeled"], case["n_unlabeled"], 10, *RULES[case["client_class"]])
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


SUPERVISED: dict[str, Any] = {"unsup_weight": 0.0}
UDA: dict[str, Any] = {"unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20}
FIXMATCH: dict[str, Any] = {}


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


def logits(method: LocalSSL, given: Batch) -> dict[str, Tensor]:
    """Labelled, weak and strong images in one forward pass."""
    views = {"x": given["labelled"]["x"], "weak": given["unlabelled"]["weak"], "strong": given["unlabelled"]["strong"]}
    out = method.model(torch.cat(list(views.values())))
    return dict(zip(views, out.split([4, 8, 8]), strict=True))


THRESHOLD = 0.45


@pytest.mark.parametrize("step", [0, 4, 40])
def test_objectives_in_closed_form(step: int) -> None:
    """Supervised, UDA with its ramp, FixMatch with and without one; some of the mask is 0, some 1."""
    out = logits(make(), batch())
    supervised = F.cross_entropy(out["x"], batch()["labelled"]["y"])
    p = out["weak"].softmax(dim=1)
    mask = p.amax(dim=1) >= THRESHOLD
    assert 0 < int(mask.sum()) < 8
    log_q = out["strong"].log_softmax(dim=1)
    soft = (mask * -(p * log_q).sum(dim=1)).sum() / 8
    hard = -(mask * log_q[torch.arange(8), p.argmax(dim=1)]).sum() / 8
    ramp = 8 * min(1.0, (step + 1) / 20)
    sharp = (out["weak"] / 0.4).softmax(dim=1)
    original = (mask * -(sharp * log_q).sum(dim=1)).sum() / 8
    expected: list[tuple[dict[str, Any], Tensor]] = [
        (SUPERVISED, supervised),
        (UDA, supervised + ramp * soft),
        (FIXMATCH, supervised + hard),
        ({"unsup_targets": "soft", "temperature": 0.4}, supervised + original),
        ({"unsup_weight": 8.0, "unsup_ramp": 20}, supervised + ramp * hard),
    ]
    for args, loss in expected:
        made = make(**args, threshold=THRESHOLD)
        torch.testing.assert_close(loss_at(made, batch(), step), loss, rtol=1e-12, atol=1e-12)


def test_shared_and_own_batch_statistics() -> None:
    """Their own: every part is normalised by itself, and FedAvg* never runs the unlabelled images."""
    given = batch()
    method = make(OwnStatistics, **SUPERVISED)
    assert set(method.outputs(given)) == {"x"}
    assert set(method.outputs(batch(revealed=True))) == {"x", "weak"}
    assert set(method.outputs({"unlabelled": given["unlabelled"]})) == {"weak", "strong"}  # there is nothing else
    alone = F.cross_entropy(method.model(given["labelled"]["x"]), given["labelled"]["y"])
    torch.testing.assert_close(loss_at(method, given), alone)
    assert abs(float((loss_at(make(**SUPERVISED), given) - alone).detach())) > 1e-3
    fixmatch = make(OwnStatistics, threshold=0.0)
    parts = {n: fixmatch.model(v) for n, v in given["unlabelled"].items()}
    expected = alone + F.cross_entropy(parts["strong"], parts["weak"].argmax(dim=1))
    torch.testing.assert_close(loss_at(fixmatch, given), expected)
    assert set(fixmatch.outputs(supervised(batch(revealed=True)))) == {"x"}


class Flat(nn.Module):
    """Logits of digits from 16 pixels, with a scale that no gradient makes infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.avg_pool2d(x, 8).flatten(1))


def visit(data: Digits, cls: type[LocalSSL] = LocalSSL, **args: Any) -> tuple[list[Batch], LocalSSL, Federation]:
    """The batches that client 0 trains on in one visit."""
    torch.manual_seed(0)
    method, seen = cls(Flat(), **args), []
    run = Federation(method, data, data.roster(0), plain_fabric(), 2, seed=0)
    original = method.on_train_batch_start

    def spy(given: Batch, number: int) -> None:
        seen.append(given)
        original(given, number)

    method.on_train_batch_start = spy
    visited(run, Visit(client=0, size=data.client(0).size))
    return seen, method, run


def test_a_visit_is_five_joint_steps() -> None:
    """10 labelled images and the rule's number of unlabelled ones, whatever the client holds; T multiplies."""
    data = make_data("all_clients")
    site = data.client(0)
    seen, _, run = visit(data)
    size = unlabelled_batch(len(site.labelled), len(site.unlabelled), 10, (1, 2), None)
    assert [len(b["unlabelled"]["strong"]) for b in seen[:2]] == [size, len(site.unlabelled) - size]
    assert len(seen) == 5
    assert all("y" not in b["unlabelled"] for b in seen)
    assert not visited(run, Visit(client=0, size=site.size))[1].optimizers
    assert len(visit(data, local_epochs=2)[0]) == 10
    assert len(visit(data, SupervisedSteps, supervised_steps=3)[0]) == 8
    assert {len(b["unlabelled"]["weak"]) for b in visit(data, unlabelled_bs=7)[0]} == {7}
    assert len(visit(data, steps_per_visit=None)[0]) == -(-len(site.labelled) // 10)


def supervised(given: Batch) -> Batch:
    """The batch as a supervised step gets it."""
    return {"beside": given["unlabelled"], "labelled": given["labelled"]}
