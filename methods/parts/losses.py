"""Losses that several methods share. Shapes: ``B`` samples, ``C`` classes."""

from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values ``[B]`` where the mask is set; 0, with gradient 0, where it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)
