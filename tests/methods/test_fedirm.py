"""FedIRM: relation matrices and their way through the federation, gates, ramp, labelled losses, dropout."""

import warnings
from math import log
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.federation.loop import Federation
from datamodules.views.batches import epoch
from federations import SIDE, few_data, make_federation, make_method, plain_fabric, run_rows, site_of
from golden_files import close, load, noise
from methods import models
from methods.ablations.fedirm import SmoothedTwoViews
from methods.base import Upload, Visit
from methods.fedirm import FedIRM, entropy, relation_loss, relation_matrix
from methods.models.backbone import draw_from


def federation(
    clients: int = 4,
    labelled: int = 1,
    rounds: int = 3,
    dropout: float = 0.0,
    method: type[FedIRM] = FedIRM,
    **args: Any,
) -> Federation:
    data = few_data(clients, labelled)
    torch.manual_seed(0)
    made = method(
        models.build("small_cnn", 10, image_size=SIDE, head_dropout=dropout), 10, **{"warmup_rounds": 0, **args}
    )
    return Federation(made, data, data.roster(0), plain_fabric(), rounds, seed=0)


def views(count: int = 12, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(count, 3, 24, 24, generator=g) for name in ("student", "teacher")}


def unlabelled(round: int = 37, **args: Any) -> FedIRM:
    """A method at an unlabelled client, whose relation target is not uniform."""
    method = make_method("fedirm", **args)
    assert isinstance(method, FedIRM)
    method.visit = Visit(round=round, client=1, labelled=False)
    g = torch.Generator().manual_seed(5)
    method.load_tensors({"relation": torch.randn(10, 10, generator=g).softmax(dim=1)})
    method.train()
    method.on_train_start()
    return method


# --- the objective of a client without labels


def expected(method: FedIRM, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Consistency and relation loss in the words of the paper; there is no dropout, so all passes are alike."""
    logits = method.model(batch["student"])
    p, q = logits.softmax(dim=1), method.teacher(batch["teacher"]).softmax(dim=1)
    keep = (entropy(p) < method.hparams.entropy_gate) & (p.amax(dim=1) >= method.hparams.confidence_gate)
    matching = torch.zeros(())
    if keep.any():
        relation = relation_matrix(logits[keep], p.argmax(dim=1)[keep])
        matching = relation_loss(method.relation, relation)
    return (p - q).square().sum() / method.hparams.batch_size, matching


def test_loss_of_an_unlabelled_client() -> None:
    """loss_weight λ (consistency + relation), λ = 1 thirty rounds after the warm-up."""
    batch = views()
    confidence = unlabelled().predict(batch["student"]).amax(dim=1).detach()
    method = unlabelled(confidence_gate=float(confidence.median()), entropy_gate=99.0, loss_weight=15.0)
    consistency, matching = expected(method, batch)
    everything = expected(unlabelled(confidence_gate=0.0, entropy_gate=99.0), batch)[1]
    assert float(matching.detach()) not in (0.0, float(everything.detach()))
    loss = method.training_step({"unlabelled": batch}, 0)
    torch.testing.assert_close(loss, 15 * (consistency + matching))


@pytest.mark.parametrize("gate", [{"confidence_gate": 1.1}, {"entropy_gate": 0.0}])
def test_empty_gates_leave_the_consistency(gate: dict[str, float]) -> None:
    """Where no sample is certain the relation loss is 0 and gradients are those of the consistency alone."""
    method, batch = unlabelled(loss_weight=15.0, **gate), views()
    loss = method.training_step({"unlabelled": batch}, 0)
    consistency, _ = expected(method, batch)
    torch.testing.assert_close(loss, 15 * consistency)
    parameters = list(method.model.parameters())
    ours, alone = (torch.autograd.grad(v, parameters) for v in (loss, 15 * consistency))
    for gradient, reference in zip(ours, alone, strict=True):
        assert bool(torch.isfinite(gradient).all())
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-7)
    assert any(bool(gradient.abs().max() > 0) for gradient in ours)


def test_the_teacher_trains_and_evaluates_with_the_student() -> None:
    method = make_method("fedirm")
    for mode in (True, False):
        method.train(mode)
        assert (method.model.training, method.teacher.training) == (mode, mode)


# --- dropout


def test_uncertainty_is_that_of_the_mean_logits_of_eleven_passes() -> None:
    """The gate sees the entropy of averaged stochastic logits, drawn after those of the gradient pass."""
    torch.manual_seed(0)
    network = models.build("small_cnn", 10, image_size=SIDE, head_dropout=0.5)
    method = FedIRM(network, 10, confidence_gate=0.0).train()
    method.visit = Visit(round=37, client=1, labelled=False)
    method.generator = torch.Generator().manual_seed(1)
    draw_from(method, method.generator)
    method.on_train_start()
    batch = views()
    features = network.features(batch["student"])
    logits = network.head(features)
    passes = network.head(features.repeat(11, 1)).view(11, 12, 10)
    uncertainty = entropy(passes.mean(dim=0).softmax(dim=1)).detach()
    teacher = method.teacher(batch["teacher"]).softmax(dim=1)
    method.hparams.entropy_gate = float(uncertainty.median()) + 1e-6
    keep = uncertainty < method.hparams.entropy_gate
    assert 0 < int(keep.sum()) < 12
    matching = relation_loss(method.relation, relation_matrix(logits, logits.argmax(dim=1), keep))
    consistency = (logits.softmax(dim=1) - teacher).square().sum() / method.hparams.batch_size
    method.generator.manual_seed(1)
    torch.testing.assert_close(method.training_step({"unlabelled": batch}, 0), consistency + matching)


# --- labelled clients and the server


def test_a_labelled_client_returns_the_relations_of_its_batches() -> None:
    """Mean over batches of the matrices of the logits before each step; a client without labels returns none."""
    run = federation(labelled=2, lr=0.0, batch_size=20)
    visits = run.visits(0)
    upload = run.engine.run_visit(visits[0], run.engine.send(visits[0], run.server), None)[0].upload
    assert upload is not None
    site = site_of(run, visits[0])
    batches = epoch(
        {"labelled": run.method.streams(site.data)["labelled"]}, run.data, lambda p: site.generator(f"{p}/1")
    )
    with torch.no_grad():
        matrices = [relation_matrix(run.method.model(b["labelled"]["x"]), b["labelled"]["y"]) for b in batches]
    assert len(matrices) == 4
    torch.testing.assert_close(upload.stats["relation"], torch.stack(matrices).mean(dim=0))
    assert not torch.equal(matrices[0], matrices[1])
    other = run.engine.run_visit(visits[-1], run.engine.send(visits[-1], run.server), None)[0].upload
    assert other is not None
    assert other.stats == {}


def test_a_round_without_labelled_clients_keeps_the_matrix() -> None:
    run = federation()
    upload = Upload(Visit(client=2, labelled=False), run.method.tensors("shared"), 10.0)
    before = torch.randn(10, 10).softmax(dim=1)
    run.method.load_tensors({"relation": before})
    run.method.aggregate([upload])
    assert torch.equal(run.method.relation, before)


def test_a_head_that_drops_nothing_is_told() -> None:
    """There the passes are one prediction over and over."""
    with pytest.warns(UserWarning, match=r"no unit is dropped .* model_args.head_dropout=0.5"):
        make_method("fedirm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FedIRM(models.build("small_cnn", 10, head_dropout=0.5), 10)


def test_labelled_clients_share_half_of_the_weight() -> None:
    """share:0.5 by default, sizes under plain ("origi." in the tables); relations are averaged without weights."""
    for mode, expected_share in (("share:0.5", 0.5), ("plain", 0.1)):
        method = make_method("fedirm", labelled_weight_mode=mode)
        uploads = []
        for client, size in enumerate((10.0, 30.0, 60.0)):
            tensors = {k: torch.full_like(v, float(client == 0)) for k, v in method.tensors("shared").items()}
            stats = {"relation": torch.full((10, 10), float(client))} if client < 2 else {}
            uploads.append(Upload(Visit(client=client, labelled=client == 0), tensors, size, stats))
        method.aggregate(uploads)
        assert float(method.tensors("shared")["model.conv1.bias"][0]) == pytest.approx(expected_share)
        assert torch.equal(method.relation, torch.full((10, 10), 0.5))


@pytest.mark.parametrize("kind", [FedIRM, SmoothedTwoViews])
def test_labelled_losses(kind: type[FedIRM]) -> None:
    """Plain cross-entropy of one view; in the ablation smoothed cross-entropies of two views added."""
    run = federation(method=kind)
    visit = run.visits(0)[0]
    site = site_of(run, visit)
    method = run.method
    method.visit = visit
    batch = next(epoch(method.streams(site.data), run.data, site.generator))["labelled"]
    logits = [method.model(batch[name]) for name in batch if name != "y"]
    loss = method.training_step({"labelled": batch}, 0)
    if kind is FedIRM:
        assert set(batch) == {"x", "y"}
        torch.testing.assert_close(loss, F.cross_entropy(logits[0], batch["y"]))
    else:
        assert set(batch) == {"x", "x2", "y"}
        assert not torch.equal(batch["x"], batch["x2"])
        hard = torch.stack([F.cross_entropy(z, batch["y"]) for z in logits])
        soft = torch.stack([-z.log_softmax(dim=1).mean() for z in logits])
        torch.testing.assert_close(loss, (0.9 * hard + 0.1 * soft).sum())


def test_relations_reach_unlabelled_clients_one_round_later() -> None:
    """Everybody meets a uniform matrix in round 0, and then the plain mean of the last round's labelled clients."""

    class Listens(FedIRM):
        met: list[tuple[Visit, Tensor]] = []
        sent: dict[int, list[Tensor]] = {}

        def on_train_start(self) -> None:
            super().on_train_start()
            self.met.append((self.visit, self.relation.clone()))

        def aggregate(self, uploads: list[Upload]) -> None:
            number = uploads[0].visit.round
            self.sent[number] = [u.stats["relation"] for u in uploads if u.stats]
            super().aggregate(uploads)

    Listens.met, Listens.sent = [], {}
    run = make_federation(Listens, few_data(4, 2), rounds=3, warmup_rounds=1)
    run_rows(run)
    assert [len(sent) for sent in Listens.sent.values()] == [2, 2, 2]
    assert {v.client for v, _ in Listens.met if v.round == 0} == {0, 1}
    assert {v.client for v, _ in Listens.met if v.round == 2} == {0, 1, 2, 3}
    for visit, matrix in Listens.met:
        if visit.round == 0:
            assert torch.equal(matrix, torch.full((10, 10), 0.1))
        else:
            torch.testing.assert_close(matrix, torch.stack(Listens.sent[visit.round - 1]).mean(dim=0))
    assert not torch.equal(Listens.sent[0][0], Listens.sent[0][1])
    torch.testing.assert_close(run.server["relation"], torch.stack(Listens.sent[2]).mean(dim=0))


# --- relation matrices, their divergence and entropies

RELATION = load("rscfed/fedirm_relation")


def test_released_relation_matrices() -> None:
    given, out = RELATION["inputs"], RELATION["outputs"]
    logits = given["source_logits"].clone().requires_grad_()
    target = relation_matrix(given["target_logits"], given["target_labels"], temperature=given["temperature"])
    source = relation_matrix(logits, given["source_pseudo_labels"])
    close(target, out["target_matrix"], RELATION)
    close(source, out["source_matrix"], RELATION)
    loss = relation_loss(target, source)
    assert float(loss.detach()) == pytest.approx(out["kd_loss"], rel=1e-5)
    loss.backward()
    close(logits.grad, out["grad_source_logits"], RELATION)
    ten = RELATION["ten_class"]
    close(relation_matrix(ten["logits"], ten["labels"]), ten["matrix"], RELATION)


@pytest.mark.parametrize("gap", [40.0, 60.0, 120.0])
def test_relation_loss_of_saturated_rows(gap: float) -> None:
    """A row that is nearly one class keeps its divergence, and its gradient, in closed form."""
    logits = torch.tensor([[gap, 0.0, 0.0], [0.0, gap / 2, 0.0]], requires_grad=True)
    relation = relation_matrix(logits, torch.tensor([0, 1]))
    loss = relation_loss(torch.full((3, 3), 1 / 3), relation)
    # symmetric KL of a uniform row and softmax(a, 0, 0): (a / 2) (softmax's first entry - 1 / 3)
    rows = [a / 2 * (torch.softmax(torch.tensor([a, 0.0, 0.0]), 0)[0] - 1 / 3) for a in (gap / 2, gap / 4, 0.0)]
    assert float(loss) == pytest.approx(float(sum(rows)) / 3, rel=1e-4)
    assert float(torch.autograd.grad(loss, logits)[0][0].abs().sum()) > 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_absent_classes_in_half_precision(dtype: torch.dtype) -> None:
    logits, labels = noise(6, 5).to(dtype), torch.tensor([0, 0, 1, 1, 2, 4])
    found = relation_matrix(logits, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, relation_matrix(logits.float(), labels))
    torch.testing.assert_close(found[3], torch.full((5,), 0.2))


def test_relation_matrix_laws() -> None:
    """Rows are distributions, an absent class is uniform, the order of samples does not matter, gates take out."""
    logits, labels = noise(12, 4), torch.tensor([0, 1, 3] * 4)
    matrix = relation_matrix(logits, labels)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(matrix[2], torch.full((4,), 0.25, dtype=torch.float64))
    order = torch.randperm(12)
    torch.testing.assert_close(relation_matrix(logits[order], labels[order]), matrix)
    keep = torch.tensor([True] * 7 + [False] * 5)
    torch.testing.assert_close(relation_matrix(logits, labels, keep), relation_matrix(logits[:7], labels[:7]))
    one = relation_matrix(logits[:1], labels[:1], temperature=3.0)
    torch.testing.assert_close(one[0], (logits[0] / 3).softmax(dim=0), rtol=1e-6, atol=0)


def test_relation_loss_laws() -> None:
    """Zero for equal matrices, symmetric, positive, finite at 0."""
    p, q = (noise(5, 5, seed=s).softmax(dim=1) for s in (1, 2))
    assert float(relation_loss(p, p)) == 0
    assert float(relation_loss(p, q)) == pytest.approx(float(relation_loss(q, p)))
    by_hand = 0.5 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 5
    torch.testing.assert_close(relation_loss(p, q), by_hand)
    assert bool(torch.isfinite(relation_loss(torch.eye(3), torch.eye(3).roll(1, 0))))


def test_entropies() -> None:
    """ln C for a uniform prediction, 0 for a certain one."""
    assert entropy(torch.full((2, 10), 0.1)).tolist() == pytest.approx([log(10)] * 2, abs=2e-5)
    assert float(entropy(torch.eye(3))[0]) == pytest.approx(0, abs=2e-6)
