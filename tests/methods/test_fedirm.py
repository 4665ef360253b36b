"""FedIRM: relation matrices and their way through the federation, gates, ramp, labelled losses, dropout."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from federations import SIDE, make_method
from golden_files import close, load, noise
from methods import models
from methods.base import Upload, Visit
from methods.fedirm import FedIRM, entropy, relation_loss, relation_matrix
from methods.models.backbone import LinearHead, draw_from


def views(count: int = 12, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(count, 3, 24, 24, generator=g) for name in ("student", "teacher")}


def unlabelled(round: int = 37, **args: Any) -> FedIRM:
    """A method at an unlabelled client, whose relation target is not uniform."""
    method = make_method("fedirm", **args)
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
    torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-7)


def test_the_teachers_parts_have_the_modes_of_the_students() -> None:
    """A part in evaluation mode, too."""
    method = unlabelled()
    next(method.model.children()).eval()
    method.on_train_start()
    student, teacher = ([part.training for part in one.modules()] for one in (method.model, method.teacher))
    assert student == teacher and {*student} == {True, False}


# --- dropout


def test_uncertainty_is_that_of_the_mean_logits_of_eleven_passes() -> None:
    """The gate sees the entropy of averaged stochastic logits, drawn after those of the gradient pass."""
    torch.manual_seed(0)
    network = models.build("small_cnn", 10, image_size=SIDE, head_dropout=0.5)
    method = FedIRM(network, 10, confidence_gate=0.0, loss_weight=1000.0).double().train()
    method.visit = Visit(round=37, client=1, labelled=False)
    method.generator = torch.Generator().manual_seed(1)
    draw_from(method, method.generator)
    method.on_train_start()
    batch = {name: x.double() for name, x in views().items()}
    features = network.features(batch["student"])
    logits = network.head(features)
    teacher = method.teacher(batch["teacher"]).softmax(dim=1)
    passes = network.head(features.repeat(11, 1)).view(11, 12, 10)
    uncertainty = entropy(passes.mean(dim=0).softmax(dim=1)).detach()
    method.hparams.entropy_gate = float(uncertainty.median()) + 1e-6
    keep = uncertainty < method.hparams.entropy_gate
    assert 0 < int(keep.sum()) < 12
    matching = relation_loss(method.relation, relation_matrix(logits, logits.argmax(dim=1), keep))
    consistency = (logits.softmax(dim=1) - teacher).square().sum() / method.hparams.batch_size
    method.generator.manual_seed(1)
    torch.testing.assert_close(method.training_step({"unlabelled": batch}, 0), 1000 * (consistency + matching))


def test_a_head_that_knows_no_passes() -> None:
    """A network of one's own may end in a plain layer: its one prediction is what eleven equal passes give."""
    losses = []
    for head in (LinearHead, nn.Linear):
        torch.manual_seed(0)
        network = models.build("resnet9", 10, width=8)
        network.head = head(network.feature_dim, 10)
        method = FedIRM(network, 10, confidence_gate=0.0).train()
        method.visit = Visit(round=37, client=1, labelled=False)
        method.on_train_start()
        losses.append(method.training_step({"unlabelled": views()}, 0))
    assert torch.equal(*losses)


# --- labelled clients and the server


def test_a_round_without_labelled_clients_keeps_the_matrix() -> None:
    method = make_method("fedirm")
    before = torch.randn(10, 10).softmax(dim=1)
    method.load_tensors({"relation": before})
    method.aggregate([Upload(Visit(client=2, labelled=False), method.tensors("shared"), 10.0)])
    assert torch.equal(method.relation, before)


def test_a_head_that_drops_nothing_is_told() -> None:
    """There the passes are one prediction over and over."""
    with pytest.warns(UserWarning, match=r"no unit is dropped .* model_args.head_dropout=0.5"):
        make_method("fedirm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FedIRM(models.build("small_cnn", 10, head_dropout=0.5), 10)


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
