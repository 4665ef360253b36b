"""FedMatch: two parts of every weight and who trains which, helpers, batches, messages, and other people's copies."""

import copy
from statistics import NormalDist
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from benchmark.federation.site import LocalSite, Sent
from datamodules.base import Scenario
from datamodules.digits import Digits
from federations import few_in, fit_on, images, plain_fabric, site_of
from golden_files import noise
from methods import models
from methods.ablations.fedmatch import OwnEntriesKept
from methods.base import Visit
from methods.fedmatch import Additive, FedMatch, differs, flat, nearest, noise_image, pairs, sparse_bytes
from methods.parts.tensors import debias

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet9_plain": {"width": 2},
    "resnet9": {"width": 2},
    "static": {"name": "wrn28_2", "depth": 10, "width": 1, "norm": "static"},
    "vit_tiny_scratch": {"image_size": 32},
}


PLAIN = {"lr_schedule": "constant", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}


AT_CLIENTS: dict[str, Any] = {"batches": "in_order", "batch_size": 10, "l1_threshold": 1e-3, "delta": 2e-4, **PLAIN}
"""The released recipe with labels at the clients, but for thresholds that some entries of every message reach."""


def few(scenario: Scenario = "server") -> Digits:
    """A few digits over six clients, in double precision."""
    data = few_in(scenario, num_clients=6, side=16)
    data.place(torch.device("cpu"), torch.float64)
    return data


def network(name: str) -> nn.Module:
    """Freshly initialised, in double precision."""
    options = dict(NETWORKS[name])
    torch.manual_seed(0)
    return models.build(options.pop("name", name), 10, **options).double()


def method(name: str = "resnet9_plain", cls: type[FedMatch] = FedMatch, **args: Any) -> FedMatch:
    """Around a small network, in double precision, with one epoch everywhere unless the arguments say otherwise."""
    known = {"num_classes": 10, "num_clients": 6, "image_shape": (3, 16, 16)}
    return cls(network(name), **known, **{"local_epochs": 1, "server_epochs": 1, **args}).double()


def federation(made: FedMatch, data: Digits | None = None, rounds: int = 4) -> Federation:
    """In double precision, with labels at the server unless the data says otherwise."""
    data = data or few()
    return Federation(made, data, data.roster(0), plain_fabric("64-true"), rounds, seed=0)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of tensors that both have and that differ."""
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}


# The two parts.


def test_labels_train_sigma_and_images_train_psi() -> None:
    """At the server, and at a client without labels; biases and norms are part of sigma."""
    run = federation(method("resnet9"))
    psi = {f"model.{name}" for name in run.method.psi_names}
    everything = {f"model.{name}" for name, _ in run.method.model.named_parameters()}
    assert len(psi) == len(pairs(run.method.model)) > 8
    before = dict(run.server)
    uploads, _ = run.run_visits(run.visits(0)[:2])
    for upload in uploads:
        assert changed(before, upload.tensors) & everything == psi
    run.become_server()
    run.server_phase(0)
    assert changed(before, run.server) & everything == everything - psi


@pytest.mark.parametrize("dpl", [False, True])
@pytest.mark.parametrize("helped", [False, True])
def test_psi_descends_on_the_unlabelled_loss(helped: bool, dpl: bool) -> None:
    """One plain step of the four terms, written out; helper votes and the divergence use raw probabilities."""
    made = method(dpl=dpl, lr=0.01, **PLAIN)
    run = federation(made)
    model, x, strong = copy.deepcopy(made.model), images(), images(seed=2)
    helpers = noise(6, 2, 10).softmax(dim=-1)
    logits = model(x)
    own = logits.softmax(dim=1)
    seen = debias(own.detach()) if dpl else own.detach()
    made.hparams.threshold = float(seen.max(dim=1).values.median())
    confident = seen.max(dim=1).values >= made.hparams.threshold
    assert 0 < int(confident.sum()) < 6
    if dpl:
        assert not torch.equal(seen.argmax(dim=1), own.argmax(dim=1))
    labels, terms = [], []
    for i in range(6):
        votes = torch.zeros(10)
        votes[seen[i].argmax()] += 1
        for j in range(2 if helped else 0):
            votes[helpers[i, j].argmax()] += 1
        labels.append(int(votes.argmax()))
    if helped:
        logs = own.log()[:, None].expand(-1, 2, -1)
        divergence = F.kl_div(logs, helpers, reduction="none").sum(dim=2).mean(dim=1)
        terms.append(0.01 * divergence[confident].mean())
    terms.append(0.01 * F.cross_entropy(model(strong)[confident], torch.tensor(labels)[confident]))
    terms.append(1e-5 * sum(psi.abs().sum() for _, psi in pairs(model)))
    terms.append(10.0 * sum((sigma - psi).square().sum() for sigma, psi in pairs(model)))
    psi = [psi for _, psi in pairs(model)]
    slopes = torch.autograd.grad(sum(terms), psi)
    fit_on(run, 0, {"x": x, "strong": strong, "index": torch.arange(6)} | ({"helpers": helpers} if helped else {}))
    for (_, new), old, slope in zip(pairs(made.model), psi, slopes, strict=True):
        torch.testing.assert_close(new, old - 0.01 * slope, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["resnet9_plain", "static", "vit_tiny_scratch"])
def test_the_network_computes_with_the_sum(name: str) -> None:
    """sigma is the weight of before, psi a fifth of it: the output is that of weights 1.2 times as large."""
    whole, divided = network(name), network(name)
    FedMatch(divided, num_classes=10, num_clients=1, image_shape=(3, 32, 32), l1_threshold=0.0)
    kinds = (nn.Conv2d, nn.Linear)
    weights = [layer.weight for layer in whole.modules() if isinstance(layer, kinds)]
    with torch.no_grad():
        for weight in weights:
            weight.mul_(1.2)
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    for mode in (True, False):
        torch.testing.assert_close(divided.train(mode)(x), whole.train(mode)(x))
    assert len(pairs(divided)) == len(weights)
    assert all(torch.equal(psi, 0.2 * sigma) for sigma, psi in pairs(divided))


def test_small_entries_are_cut_in_evaluation_only() -> None:
    """Values of exactly the bound are cut too."""
    part = Additive(torch.tensor([1e-6, -5e-6, 6e-6, 1.0], dtype=torch.float64), cut=5e-6)
    zero = torch.zeros(4, dtype=torch.float64)
    assert part(zero).tolist() == [1e-6, -5e-6, 6e-6, 1.0]
    assert part.eval()(zero).tolist() == [0.0, 0.0, 6e-6, 1.0]


# Helpers.


def test_nearest_clients() -> None:
    """By distance, without the client itself or those never seen; the lower id of two equally far away."""
    vectors = torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.1, 0.0]])
    seen = torch.tensor([True, True, True, True, False])
    assert nearest(vectors, seen, 0, 2) == [2, 3]
    assert nearest(vectors, seen, 1, 2) == [2, 0]
    assert nearest(vectors, seen, 1, 9) == [2, 0, 3]
    assert nearest(vectors, seen, 4, 2) == []
    assert nearest(vectors, torch.tensor([True] + [False] * 4), 0, 2) == []


def test_the_noise_is_one_image_clipped_to_the_range_of_pixels() -> None:
    """A normal law of mean and deviation 125 without what is beyond two deviations; then all below 0 is 0, which is a
    share of (Phi(-1) - Phi(-2)) / (Phi(2) - Phi(-2)), and all above 255 is 255.
    """
    image = noise_image((3, 128, 128))
    assert (float(image.min()), float(image.max())) == (0.0, 1.0)
    law = NormalDist()
    within = law.cdf(2) - law.cdf(-2)
    black, white = (law.cdf(-1) - law.cdf(-2)) / within, (law.cdf(2) - law.cdf(130 / 125)) / within
    assert float((image == 0).float().mean()) == pytest.approx(black, abs=0.007)
    assert float((image == 1).float().mean()) == pytest.approx(white, abs=0.007)


def test_a_helper_is_the_receivers_sigma_with_another_psi() -> None:
    """Its predictions on the plain images come with the batches, and stay as they are during the visit."""
    data = few()
    run = federation(method("static"), data)
    made = run.method
    other = [torch.randn_like(psi) * 0.1 for _, psi in pairs(made.model)]
    sent = {**run.server, "helper.0": flat(other), "helper_count": torch.tensor(1)}
    site, work = run.engine.seats[0].begin_visit(Visit(client=2, size=data.client(2).size), Sent(sent, 0), None)
    fields = work[0].streams["unlabelled"].fields
    index = data.client(2).unlabelled
    assert torch.equal(fields["index"], index)
    model = copy.deepcopy(made.model).eval()
    with torch.no_grad():
        for (_, psi), value in zip(pairs(model), other, strict=True):
            psi.copy_(value)
        expected = torch.cat([model(x) for x in site.views("test", index)]).softmax(dim=1)
    torch.testing.assert_close(fields["helpers"], expected[:, None])
    _, alone = run.engine.seats[0].begin_visit(Visit(client=2, size=data.client(2).size), Sent(run.server, 0), None)
    assert "helpers" not in alone[0].streams["unlabelled"].fields


# Batches.


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "steps", "size"),
    [(50, 450, 5, 90), (54, 451, 5, 91), (55, 100, 6, 17), (45, 90, 4, 23), (4, 30, 1, 30), (10, 148, 1, 148)],
)
def test_steps_in_order(labelled: int, unlabelled: int, steps: int, size: int) -> None:
    """round(n_s / 10) steps, halves to even, at least one; ceil(n_u / steps) images each, always in stored order."""
    data = few("all_clients")
    site = data.client(0)
    own = (torch.arange(labelled) % len(site.labelled), torch.arange(unlabelled) % len(site.unlabelled))
    data.clients[0] = type(site)(site.labelled[own[0]], site.labels[own[0]], site.unlabelled[own[1]])
    run = federation(method(**AT_CLIENTS), data)
    site = site_of(run)
    seen = list(site.batches(run.method.local_work(site), 0))
    assert len(seen) == steps
    assert all(len(batch["labelled"]["y"]) <= 10 for batch in seen)
    assert len(seen[0]["unlabelled"]["index"]) == size
    walked = torch.cat([batch["unlabelled"]["index"] for batch in seen])[:unlabelled]
    assert torch.equal(walked, site.data.unlabelled[: len(walked)])
    labels = torch.cat([batch["labelled"]["y"] for batch in seen])
    assert torch.equal(labels, site.data.labels[: len(labels)])


# --- messages


def second_visit(cls: type[FedMatch]) -> tuple[Federation, Visit, dict[str, Tensor]]:
    """A federation after a round in which every client took part, its next visit, and what that is sent."""
    data = few("all_clients")
    made = method(cls=cls, helpers=0, lr=1e-3, lambda_l1=1e-4, reset_momentum=True, **AT_CLIENTS)
    run = federation(made, data, rounds=2)
    run.roster = data.roster(0, participants=6)
    run.server_phase(0, first=True)
    run.run_round(0)
    visit = Visit(round=1, client=1, size=data.client(1).size)
    return run, visit, made.broadcast(run.server, visit)


@pytest.mark.parametrize("cls", [FedMatch, OwnEntriesKept])
def test_what_is_uploaded(cls: type[FedMatch]) -> None:
    """Entries more than ``delta`` from the server's, with psi up to ``l1_threshold`` as 0, travel as they are; the
    others are the server's again, whatever the client has kept.
    """
    run, visit, sent = second_visit(cls)
    made = run.method
    site, work = run.engine.seats[0].begin_visit(visit, Sent(sent, 0), None)
    site.fit(work)
    trained = {name: value.clone() for name, value in made.tensors("shared").items()}
    upload = made.make_upload(site)
    assert upload is not None
    psi = {f"model.{name}" for name in made.psi_names}
    masks, small, kept = {}, 0, 0
    for name, value in upload.tensors.items():
        server, compared = run.server[name], trained[name].clone()
        if name in psi:
            compared[compared.abs() <= 1e-3] = 0.0
        travels = (compared - server).abs() > 2e-4
        expected = server.clone()
        expected[travels] = trained[name][travels]
        assert torch.equal(value, expected)
        assert torch.equal(made.tensors("shared")[name], expected)  # the client goes on from it
        masks[name] = travels
        small += int((travels & (compared == 0) & (trained[name] != 0)).sum())
        kept += int((~travels & (sent[name] != server)).sum())
    assert small > 20
    assert (kept > 20) == (cls is OwnEntriesKept)
    assert upload.num_bytes == sparse_bytes(masks, run.server)


def test_what_is_downloaded() -> None:
    """A client keeps its own entries where the server's are within ``delta``, with psi up to ``l1_threshold`` as 0 on
    both sides; the others come as the server has them. The first download is whole.
    """
    run, visit, sent = second_visit(OwnEntriesKept)
    made, psi = run.method, {f"model.{name}" for name in run.method.psi_names}
    masks, small = {}, 0
    for name, own in made.kept(1).items():
        server = run.server[name]
        here, there = own.clone(), server.clone()
        if name in psi:
            here[here.abs() <= 1e-3] = there[there.abs() <= 1e-3] = 0.0
        travels = (there - here).abs() > 2e-4
        assert torch.equal(sent[name], torch.where(travels, server, own))
        masks[name] = travels
        small += int((~travels & ((there - own).abs() > 2e-4)).sum())  # cut at one side alone they would
    assert small > 20
    assert made.sent_bytes(sent, visit) == sparse_bytes(masks, run.server)


def test_helpers_are_counted() -> None:
    """Entries of another client's psi up to ``l1_threshold`` count as 0 and are not sent."""
    helper = torch.zeros(160)
    helper[:5], helper[5:20] = 1.1e-5, 0.9e-5
    sent = {"helper.0": helper, "helper_count": torch.tensor(1)}
    assert method().sent_bytes(sent, Visit(client=0)) == 5 * 4 + 160 // 8 + 8


def test_only_large_changes_are_sent() -> None:
    """More than delta, not delta itself; and what is no number, so that who receives it sees it."""
    new, old = torch.tensor([0.5, 0.25, -1.0, 1.0, float("nan")]), torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])
    assert differs(new, old, 0.25).tolist() == [True, False, True, False, True]


def test_bytes_of_sparse_updates() -> None:
    """Values and one bit per entry; never more than all values; nothing where nothing changed."""
    masks = {name: torch.arange(20) < k for name, k in (("a", 0), ("b", 3), ("c", 20))}
    values = {"a": torch.zeros(20), "b": torch.zeros(20).double(), "c": torch.zeros(20).half()}
    assert [sparse_bytes({name: mask}, values) for name, mask in masks.items()] == [0, 3 * 8 + 3, 20 * 2]
    assert sparse_bytes(masks, values) == 3 * 8 + 3 + 20 * 2
    assert sparse_bytes({}, {}) == 0


def test_a_method_lets_go_of_its_site_after_a_visit() -> None:
    run = federation(method())
    run.run_visits(run.visits(0)[:1])
    kept = {**vars(run.method), **vars(run.method._engine)}
    assert not [name for name, value in kept.items() if isinstance(value, LocalSite)]
