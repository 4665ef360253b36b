"""Losses that several methods share. Shapes: ``B`` samples, ``C`` classes."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from methods.parts.tensors import one_hot, wide


def squared_error(student: Tensor, target: Tensor, divisor: float) -> Tensor:
    """Squared differences of probabilities ``[B, C]``, summed over samples and classes, over ``divisor``."""
    return (student - target).square().sum() / divisor


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


def relation_matrix(logits: Tensor, labels: Tensor, keep: Tensor | None = None, temperature: float = 2.0) -> Tensor:
    """Class relations ``[C, C]``: row c is the softmax of the mean logits of the samples labelled c (FedIRM).

    Args:
        logits: ``[B, C]``; gradients flow through them.
        labels: int64 ``[B]``.
        keep: bool ``[B]``, samples that count; all of them by default.
        temperature: softmax temperature.

    A class without a sample gives a uniform row (released code).
    """
    logits = wide(logits)
    members = one_hot(labels, logits.shape[1]).to(logits.dtype)
    if keep is not None:
        members = members * keep.to(logits.dtype)[:, None]
    means = members.T @ logits / (members.sum(dim=0)[:, None] + 1e-8)
    return torch.softmax(means / temperature, dim=1)


def relation_loss(target: Tensor, relation: Tensor, rows: Tensor | None = None) -> Tensor:
    """Symmetric KL divergence of two relation matrices ``[C, C]``, over the number of classes (FedIRM).

    Args:
        target: reference matrix P.
        relation: matrix Q that carries the gradient.
        rows: bool ``[C]``, rows that count; all of them by default.
    """
    tiny = torch.finfo(relation.dtype).tiny
    p, q = target.clamp_min(tiny), relation.clamp_min(tiny)
    terms = 0.5 * (p - q) * (p.log() - q.log())
    return (terms if rows is None else terms * rows[:, None]).sum() / len(target)
