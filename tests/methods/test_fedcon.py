"""FedCon: the two losses and their averages, what travels, how little the released clients move, and LARS."""

import copy
from math import cos, exp, pi, sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.federation.loop import Federation
from federations import few_in, fit_on, images, plain_fabric
from methods import models
from methods.ablations.fedcon import EMAStudent, ReleasedFedCon, scaled, student_decay, warmup_factor
from methods.fedcon import FedCon
from methods.parts.tensors import divergence


def method(cls: type[FedCon] = FedCon, **args: Any) -> FedCon:
    """Around a small network, in double precision."""
    torch.manual_seed(0)
    model = models.build("wrn28_2", 10, image_size=16, depth=8, width=1, norm="running")
    return cls(model, projector_width=32, **{"local_epochs": 1, "server_epochs": 1, **args}).double()


def federation(made: FedCon) -> Federation:
    """A few digits, labels at the server, in double precision."""
    data = few_in("server", side=16)
    data.place(torch.device("cpu"), torch.float64)
    return Federation(made, data, data.roster(0), plain_fabric("64-true"), rounds=3, seed=0)


def test_the_students_decay_by_hand() -> None:
    """From 0.9996 to 1 over 20 rounds."""
    assert student_decay(0) == pytest.approx(1 - 4e-4)
    assert student_decay(10_000) == pytest.approx(1 - 2e-4)
    assert student_decay(20_000) == pytest.approx(1.0)
    assert student_decay(3000) == pytest.approx(1 - 4e-4 * (cos(0.15 * pi) + 1) / 2)


def test_the_warm_up_of_the_released_code_by_hand() -> None:
    """The base in the first step; after step k, (k - 1) / (L - 1) of it for k = 1 .. L: from 0 to 1, both included."""
    length = 20
    expected = [1.0, *torch.linspace(0, 1, length, dtype=torch.float64).tolist()]
    assert [warmup_factor(step, length) for step in range(length + 1)] == pytest.approx(expected, abs=1e-15)
    assert warmup_factor(length + 30, length) == 1.0
    assert [warmup_factor(step, 1) for step in range(3)] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("cls", [FedCon, EMAStudent])
def test_the_server_loss(cls: type[FedCon]) -> None:
    """One plain step: both views classified, and pulled to what the student says of the other view."""
    plain = {"server_sgd_momentum": 0.0, "server_nesterov": False, "server_weight_decay": 0.0, "clip_norm": None}
    made = method(cls=cls, server_lr=0.1, lr_schedule="constant", **plain)
    run = federation(made)
    if isinstance(made, EMAStudent):
        with torch.no_grad():
            for p in made.student.parameters():
                p.mul_(1.5)
    teacher = copy.deepcopy(made.model)
    student = copy.deepcopy(made.student_network())
    x, x2, y = images(), images(seed=2), torch.arange(6)
    t, s = [teacher(x), teacher(x2)], [student(x).detach(), student(x2).detach()]
    w = exp(-5 * (1 - 51 / 100) ** 2)
    loss = 0.5 * F.cross_entropy(t[0], y) + 0.5 * F.cross_entropy(t[1], y)
    apart = divergence(s[1], t[0]).mean(), divergence(s[0], t[1]).mean()
    loss = loss + w * (0.5 * apart[0] + 0.5 * apart[1])
    assert float(apart[0].detach()) > 1e-4
    slopes = torch.autograd.grad(loss, list(teacher.parameters()))
    fit_on(run, -1, {"x": x, "x2": x2, "y": y}, round=50, rounds=100)
    for new, old, slope in zip(made.model.parameters(), teacher.parameters(), slopes, strict=True):
        torch.testing.assert_close(new, old - 0.1 * slope)
    if isinstance(made, EMAStudent):
        decay = student_decay(51_000)
        for new, old, goal in zip(
            made.student.parameters(), student.parameters(), made.model.parameters(), strict=True
        ):
            torch.testing.assert_close(new, decay * old + (1 - decay) * goal)


def test_the_client_loss() -> None:
    """One plain step of backbone and predictor; the target then follows the new backbone."""
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": None}
    made = method(lr=0.1, lr_schedule="constant", target_decay=0.9, **plain)
    run = federation(made)
    with torch.no_grad():
        for p in made.target.parameters():
            p.add_(0.05 * torch.randn_like(p))
    model, target, h = copy.deepcopy(made.model), copy.deepcopy(made.target), copy.deepcopy(made.projector)
    x, x2 = images(), images(seed=2)
    online = [h(model.features(x)), h(model.features(x2))]
    goal = [target.features(x).detach(), target.features(x2).detach()]
    loss = -0.5 * F.cosine_similarity(online[0], goal[1]).mean() - 0.5 * F.cosine_similarity(online[1], goal[0]).mean()
    learnt = [p for n, p in model.named_parameters() if not n.startswith("head.")] + list(h.parameters())
    slopes = torch.autograd.grad(loss, learnt)
    fit_on(run, 0, {"x": x, "x2": x2})
    new = [*made.backbone(), *made.projector.parameters()]
    for after, before, slope in zip(new, learnt, slopes, strict=True):
        torch.testing.assert_close(after, before - 0.1 * slope)
    for after, before, now in zip(made.target.parameters(), target.parameters(), made.backbone(), strict=True):
        torch.testing.assert_close(after, 0.9 * before + 0.1 * now)
    assert torch.equal(made.model.head.weight, model.head.weight)


def test_only_the_backbone_travels() -> None:
    """With its running statistics; the classifier is the server's, predictor and target are the client's."""
    run = federation(method())
    visit = run.visits(0)[0]
    sent = run.method.broadcast(run.server, visit)
    assert sent == {n: v for n, v in run.server.items() if n.startswith("model.") and not n.startswith("model.head.")}
    assert any("running_mean" in name for name in sent)
    (upload,), _ = run.run_visits([visit])
    assert set(upload.tensors) == set(sent)
    assert {name.split(".")[0] for name in run.clients[visit.client].tensors} == {"projector", "target"}
    assert run.clients[visit.client].optimizers == []


# --- LARS


def row(*values: float) -> Tensor:
    """A matrix of one row, in double precision."""
    return torch.tensor([values], dtype=torch.float64)


def test_a_scaled_gradient_by_hand() -> None:
    """w = (3, 4), g = (4, -5), decay 1: the decayed gradient (7, -1) has norm sqrt(50), the ratio is 0.5 / sqrt(50)."""
    ratio = 0.1 * 5.0 / sqrt(50.0)
    found = scaled(row(3.0, 4.0), row(4.0, -5.0), weight_decay=1.0, trust=0.1)
    assert found.tolist()[0] == pytest.approx([ratio * 7.0, -ratio], rel=1e-15)


def test_nothing_to_scale_by() -> None:
    """A weight of zero moves along its gradient; a gradient of zero leaves the decay alone to be scaled."""
    assert torch.equal(scaled(row(0.0, 0.0), row(1.0, 2.0), 0.0), row(1.0, 2.0))
    assert torch.equal(scaled(row(1.0, 2.0), row(0.0, 0.0), 0.0), row(0.0, 0.0))
    torch.testing.assert_close(scaled(row(1.0, 2.0), row(0.0, 0.0), 0.5, trust=0.5), row(0.5, 1.0))


def test_steps_of_the_released_client() -> None:
    """A first step at the full rate, along scaled gradients of matrices and kernels and plain ones of vectors."""
    made = method(ReleasedFedCon, lr=0.1, lr_schedule="constant", momentum=0.0, weight_decay=0.5, clip_norm=None)
    run = federation(made)
    twin, x = copy.deepcopy(made), {"x": images(), "x2": images(seed=2)}
    slopes = torch.autograd.grad(twin.client_loss(x), twin.learners())
    fit_on(run, 0, x)
    for after, old, slope in zip(made.learners(), twin.learners(), slopes, strict=True):
        step = slope if old.ndim == 1 else scaled(old.detach(), slope, 0.5)
        torch.testing.assert_close(after, old - 0.1 * step)
