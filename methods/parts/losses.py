"""Losses that several methods share. Shapes: ``B`` samples, ``C`` classes."""

import torch
from torch import Tensor

from methods.parts.tensors import one_hot, wide


def squared_error(student: Tensor, target: Tensor, divisor: float) -> Tensor:
    """Squared differences of probabilities ``[B, C]``, summed over samples and classes, over ``divisor``."""
    return (student - target).square().sum() / divisor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values ``[B]`` where the mask is set; 0, with gradient 0, where it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


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
