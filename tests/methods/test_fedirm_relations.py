"""FedIRM's relation matrices, their divergence and entropies against the released functions and closed forms."""

from math import log

import pytest
import torch

from golden_files import close, load, noise
from methods.fedirm import entropy, relation_loss, relation_matrix

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
