"""Losses that several methods share. Shapes: ``B`` samples, ``C`` classes."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from methods.parts.tensors import one_hot


def weighted_loss(losses: Tensor, weights: Tensor, norm: Literal["none", "sum"] = "none") -> Tensor:
    """Mean over the samples of weight times loss, ``[B]`` each; ``norm="sum"``: over the sum of the weights, if any."""
    total, parts = (weights * losses).sum(), weights.sum()
    return total / (len(losses) if norm == "none" else torch.where(parts > 0, parts, 1.0))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values ``[B]`` where the mask is set; 0, with gradient 0, where it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def proximal_term(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """``||theta - theta_0||^2 / 2`` over all parameters (FedProx, Li et al., MLSys 2020, without its mu)."""
    return 0.5 * torch.stack([(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]).sum()


@torch.no_grad()
def cross_entropy_slope(logits: Tensor, labels: Tensor) -> Tensor:
    """Norm of the gradient of the mean cross-entropy at the logits ``[N, C]``: how hard the labels ``[N]`` pull."""
    probabilities = logits.softmax(dim=1)
    slope = probabilities - one_hot(labels, logits.shape[1]).to(probabilities.dtype)
    norm: Tensor = torch.linalg.vector_norm(slope)
    return norm / len(logits)
