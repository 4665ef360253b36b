"""FedCon: the two losses and their averages, what travels, how little the released clients move, and LARS."""

import copy
from math import cos, exp, pi, sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from benchmark.federation.site import Sent
from datamodules.digits import Digits
from federations import SCENARIOS, FewDigits, fit_on, images, plain_fabric
from methods import models
from methods.ablations.fedcon import LARS, EMAStudent, ReleasedFedCon, student_decay, warmup_factor
from methods.base import Visit
from methods.fedcon import FedCon, dissimilarity
from methods.parts.tensors import divergence


def few() -> FewDigits:
    """A few digits over six clients, labels at the server, in double precision."""
    data = FewDigits(scenario="server", partition="iid", side=16, **SCENARIOS["server"] | {"num_clients": 6})
    data.setup()
    data.place(torch.device("cpu"), torch.float64)
    return data


def method(norm: str = "running", cls: type[FedCon] = FedCon, **args: Any) -> FedCon:
    """Around a small network, in double precision."""
    torch.manual_seed(0)
    model = models.build("wrn28_2", 10, image_size=16, depth=8, width=1, norm=norm)
    return cls(model, projector_width=32, **{"local_epochs": 1, "server_epochs": 1, **args}).double()


def federation(made: FedCon, data: Digits | None = None, rounds: int = 3) -> Federation:
    data = data or few()
    return Federation(made, data, data.roster(0), plain_fabric("64-true"), rounds, seed=0)


def backbone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: v for n, v in tensors.items() if n.startswith("model.") and not n.startswith("model.head.")}


# Closed forms.


def test_dissimilarity() -> None:
    """-1 for the same direction, 1 for the opposite one, 0 across; no gradient reaches the target."""
    p = torch.tensor([[2.0, 0.0], [0.0, 3.0]], requires_grad=True)
    z = torch.tensor([[5.0, 0.0], [0.0, 0.1]], requires_grad=True)
    found = torch.stack([dissimilarity(p, z), dissimilarity(p, -z), dissimilarity(p, z.flip(1))])
    torch.testing.assert_close(found.detach(), torch.tensor([-1.0, 1.0, 0.0]))
    dissimilarity(p, z).backward()
    assert z.grad is None


def test_divergence_is_torchs() -> None:
    """Summed over classes."""
    p, q = images(3).flatten(1)[:, :10], images(3, 2).flatten(1)[:, :10]
    expected = F.kl_div(q.log_softmax(dim=1), p.softmax(dim=1), reduction="none").sum(dim=1)
    torch.testing.assert_close(divergence(p, q), expected)
    assert divergence(p, p).tolist() == pytest.approx([0.0] * 3)


def test_schedules_by_hand() -> None:
    """The student's decay from 0.9996 to 1 and back, and the warm-up that begins anew."""
    assert student_decay(0) == pytest.approx(1 - 4e-4)
    assert student_decay(10_000) == pytest.approx(1 - 2e-4)
    assert student_decay(20_000) == pytest.approx(1.0)
    assert student_decay(3000) == pytest.approx(1 - 4e-4 * (cos(0.15 * pi) + 1) / 2)


def test_the_warm_up_of_the_released_code_by_hand() -> None:
    """The base in the first step; after step k, (k - 1) / (L - 1) of it for k = 1 .. L: from 0 to 1, both included."""
    length = 20
    expected = [1.0, *torch.linspace(0, 1, length, dtype=torch.float64).tolist()]
    assert [warmup_factor(step, length) for step in range(length + 1)] == pytest.approx(expected, abs=1e-15)
    assert warmup_factor(length, length) == 1.0
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


def test_the_server_round_counts_from_its_own_first_one() -> None:
    """It trains before the clients: round 0 before the first round, then one more than the clients' last."""
    made = method()
    run = federation(made)
    run.roster.participants = 1
    ramps = []
    original = made.on_train_end
    made.on_train_end = lambda: (ramps.append(float(made.ramp)) if made.visit.client < 0 else None, original())
    run.run()
    assert ramps == pytest.approx([exp(-5 * (1 - r / 100) ** 2) for r in range(4)])
    assert ramps[0] == pytest.approx(0.0067, abs=1e-4)


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


# What travels and what stays.


def test_only_the_backbone_travels() -> None:
    """With its running statistics; the classifier is the server's, predictor and target are the client's."""
    run = federation(method())
    run.server_phase(0, first=True)
    visits = run.visits(0)[:2]
    sent = run.method.broadcast(run.server, visits[0])
    assert sent == backbone(run.server)
    assert any("running_mean" in name for name in sent)
    uploads, _ = run.run_visits(visits)
    assert all(set(upload.tensors) == set(sent) for upload in uploads)
    assert {name.split(".")[0] for name in run.clients[visits[0].client].tensors} == {"projector", "target"}
    assert run.clients[visits[0].client].optimizers == []


def test_a_target_starts_as_the_first_backbone_and_stays_with_the_client() -> None:
    """Every client's own; at the second visit it is what the first one left."""
    run = federation(method())
    run.server_phase(0, first=True)
    visit = Visit(client=2, size=run.data.client(2).size, first=True)
    run.engine.seats[0].begin_visit(visit, Sent(run.method.broadcast(run.server, visit), 0), None)
    own = {name: run.server[f"model.{name}"] for name in run.method.target.state_dict()}
    assert all(torch.equal(value, own[name]) for name, value in run.method.target.state_dict().items())
    run.run_visits([visit])
    kept = run.clients[2].tensors
    assert any(not torch.equal(kept[f"target.{name}"], value) for name, value in own.items())
    run.engine.seats[0].begin_visit(Visit(client=2, size=visit.size, first=False), Sent(run.server, 0), run.clients[2])
    assert all(torch.equal(v, kept[f"target.{n}"]) for n, v in run.method.target.state_dict().items())


def test_a_client_with_one_image_waits() -> None:
    """Batch norm in the predictor cannot train on one; the model comes back as it was sent."""
    data = few()
    site = data.client(0)
    data.clients[0] = type(site)(site.labelled, site.labels, site.unlabelled[:1])
    run = federation(method(), data)
    upload = run.run_visits([Visit(client=0, size=1)])[0][0]
    assert all(torch.equal(value, run.server[name]) for name, value in upload.tensors.items())


# The released clients.

RELEASED: dict[str, Any] = {
    "cls": ReleasedFedCon,
    "lr": 0.3 * 10 / 256,
    "lr_schedule": "constant",
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 1.5e-6,
    "clip_norm": None,
}


def test_incomplete_batches_are_left_out() -> None:
    """35 images in batches of 16 are two steps; 40 labels in batches of 16 as well."""
    made = method(batch_size=16, server_batch_size=16, **RELEASED)
    run = federation(made)
    steps: dict[int, int] = {}
    made.on_train_batch_end = lambda *a: steps.update({made.visit.client: steps.get(made.visit.client, 0) + 1})
    run.server_phase(0)
    run.run_visits(run.visits(0)[:1])
    client = run.visits(0)[0].client
    assert steps == {-1: 2, client: 2}
    assert run.data.client(client).size == 35


def test_the_average_is_uniform_and_the_classifier_stays() -> None:
    """Also of running statistics."""
    run = federation(method())
    head = run.server["model.head.weight"].clone()
    uploads, _ = run.run_visits(run.visits(0)[:3])
    run.become_server()
    run.method.aggregate(uploads)
    state = run.method.state_dict()
    for name in uploads[0].tensors:
        if state[name].is_floating_point():
            torch.testing.assert_close(state[name], torch.stack([u.tensors[name] for u in uploads]).mean(dim=0))
    assert torch.equal(state["model.head.weight"], head)


def test_each_side_has_its_optimiser() -> None:
    """SGD at both; LARS at the released clients, with a rate that changes in place."""
    for args, kind in (({}, torch.optim.SGD), (RELEASED, LARS)):
        made = method(server_lr=0.01, server_sgd_momentum=0.5, server_nesterov=False, **args)
        made.visit = Visit(client=-1)
        server = made.configure_optimizers()
        assert (type(server), server.defaults["lr"], server.defaults["momentum"]) == (torch.optim.SGD, 0.01, 0.5)
        made.visit = Visit(client=0)
        client = made.configure_optimizers()
        assert isinstance(client, kind)
        assert float(client.param_groups[0]["lr"]) == pytest.approx(made.hparams.lr)


# --- LARS


def weight(*values: float) -> nn.Parameter:
    """A matrix of one row, in double precision."""
    return nn.Parameter(torch.tensor([values], dtype=torch.float64))


def test_one_step_by_hand() -> None:
    """w = (3, 4), g = (4, -5), decay 1: the decayed gradient (7, -1) has norm sqrt(50), the ratio is 0.5 / sqrt(50)."""
    w = weight(3.0, 4.0)
    w.grad = torch.tensor([[4.0, -5.0]], dtype=torch.float64)
    LARS([w], lr=2.0, weight_decay=1.0, trust=0.1).step()
    ratio = 0.1 * 5.0 / sqrt(50.0)
    assert w.tolist()[0] == pytest.approx([3.0 - 2.0 * ratio * 7.0, 4.0 + 2.0 * ratio], rel=1e-15)


def test_biases_and_normalisation_are_exempt() -> None:
    """They follow plain gradient descent, without decay; without momentum nothing is kept."""
    layer = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer(x).square().mean().backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in layer.named_parameters()}
    optimizer = LARS(layer.parameters(), lr=0.1, weight_decay=0.5)
    optimizer.step()
    for name, p in layer.named_parameters():
        w, g = before[name]
        decayed = g + 0.5 * w
        expected = 1e-3 * w.norm() / decayed.norm() * decayed if name == "0.weight" else g
        torch.testing.assert_close(p.detach(), w - 0.1 * expected)
    assert not optimizer.state


def test_nothing_to_scale_by() -> None:
    """A weight of zero moves along its gradient; a gradient of zero leaves the decay alone to be scaled."""
    w = weight(0.0, 0.0)
    w.grad = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    LARS([w], lr=0.1).step()
    assert w.tolist()[0] == pytest.approx([-0.1, -0.2])
    w = weight(1.0, 2.0)
    w.grad = torch.zeros(1, 2, dtype=torch.float64)
    LARS([w], lr=0.1).step()
    assert w.tolist()[0] == [1.0, 2.0]
    LARS([w], lr=0.1, weight_decay=0.5, trust=0.5).step()
    assert w.tolist()[0] == pytest.approx([0.95, 1.9])
    w.grad = None
    LARS([w], lr=0.1).step()
    assert w.tolist()[0] == pytest.approx([0.95, 1.9])


@pytest.mark.parametrize("decay", [0.0, 0.3, 5.0])
def test_a_step_is_trust_times_the_weight_long(decay: float) -> None:
    """Whatever the size of the gradient and the decay: the ratio divides by the norm of what it scales."""
    for factor in (1e-4, 1.0, 1e4):
        w = weight(3.0, 4.0)
        w.grad = factor * torch.tensor([[5.0, -12.0]], dtype=torch.float64)
        before = w.detach().clone()
        LARS([w], lr=0.5, weight_decay=decay, trust=1e-3).step()
        assert float((w.detach() - before).norm()) == pytest.approx(0.5 * 1e-3 * 5.0, rel=1e-12)


def test_momentum_is_a_sum_of_scaled_steps() -> None:
    """v <- 0.9 v + lr u: the second step with the same weight norm and gradient is 1.9 times as long."""
    w = weight(3.0, 4.0)
    optimizer = LARS([w], lr=0.5, momentum=0.9, trust=1e-3)
    moved = []
    for _ in range(2):
        with torch.no_grad():
            w.copy_(torch.tensor([[3.0, 4.0]]))
        w.grad = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
        optimizer.step()
        moved.append(torch.tensor([[3.0, 4.0]]) - w.detach())
    torch.testing.assert_close(moved[1], 1.9 * moved[0])
    assert list(optimizer.state[w]) == ["momentum_buffer"]
