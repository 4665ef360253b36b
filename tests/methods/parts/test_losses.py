"""Losses that several methods share."""

import pytest
import torch
import torch.nn.functional as F

from methods.parts.losses import masked_mean, proximal_term, smoothed_divergence


def test_masked_mean() -> None:
    """Over the set mask; 0 where there is none."""
    values = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    assert masked_mean(values, torch.tensor([True, False, True])).item() == 3.5
    nothing = masked_mean(values, torch.zeros(3, dtype=torch.bool))
    nothing.backward()
    assert nothing.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [0.0] * 3


def test_smoothed_divergence() -> None:
    """One-hot: the cross-entropy; else KL; finite where the prediction is certain of another class."""
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    labels = torch.arange(20) % 5
    losses = smoothed_divergence(F.one_hot(labels, 5).double(), logits)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"), rtol=0.0, atol=2e-8)
    soft = torch.randn(20, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(dim=1)
    expected = F.kl_div(logits.log_softmax(dim=1), soft, reduction="none").sum(dim=1)
    torch.testing.assert_close(smoothed_divergence(soft, logits), expected, rtol=0.0, atol=1e-7)
    far = torch.tensor([[0.0, 1000.0]])
    assert smoothed_divergence(torch.tensor([[1.0, 0.0]]), far).item() == pytest.approx(23.026, abs=1e-3)


def test_the_proximal_term() -> None:
    """Half the squared distance over all parameters; its gradient is the difference."""
    here = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]
    there = [torch.tensor([0.0, 2.0]), torch.tensor([[1.0]])]
    term = proximal_term(here, there)
    assert float(term) == 0.5 * (1 + 4)
    gradients = torch.autograd.grad(term, here)
    assert [g.tolist() for g in gradients] == [[1.0, 0.0], [[2.0]]]
