"""Losses shared by several methods. Shapes: ``B`` samples, ``C`` classes."""

from collections.abc import Iterable

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values ``[B]`` where the mask is set; 0, with gradient 0, if it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def smoothed_divergence(targets: Tensor, logits: Tensor, eps: float = 1e-10) -> Tensor:
    """Per-sample KL(t || p), ``[B]``, where p is the softmax of the logits; only p gets a gradient.

    ``eps`` is added to every entry of t and p, as in SAGE's released code; for one-hot targets the value equals the
    cross-entropy up to about 1e-8.

    Args:
        targets: distributions ``[B, C]``.
        logits: ``[B, C]``, float32 or wider.
    """
    t, p = targets.detach() + eps, logits.softmax(dim=1) + eps
    return (t * (t.log() - p.log())).sum(dim=1)


def proximal_term(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """``||theta - theta_0||^2 / 2`` over all parameters (FedProx, Li et al., MLSys 2020, without the factor mu)."""
    return 0.5 * torch.stack([(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]).sum()
