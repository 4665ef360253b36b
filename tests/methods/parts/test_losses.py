"""Losses that several methods share."""

import torch

from methods.parts.losses import masked_mean


def test_masked_mean() -> None:
    """Over the set mask; 0 where there is none."""
    values = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    assert masked_mean(values, torch.tensor([True, False, True])).item() == 3.5
    nothing = masked_mean(values, torch.zeros(3, dtype=torch.bool))
    nothing.backward()
    assert nothing.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [0.0] * 3
