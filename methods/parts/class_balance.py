"""Class-balanced selection of pseudo-labels: thresholds and tail classes from class counts (CBAFed, CVPR 2023)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.common.errors import ConfigError
from methods.parts.tensors import one_hot


def class_counts(labels: Tensor, num_classes: int, kept: Tensor | None = None) -> Tensor:
    """Images per class, int64 ``[C]``, from their labels ``[N]`` (Eqs. 6, 19); nothing is read back to the host.

    Args:
        labels: int64 ``[N]``.
        num_classes: C.
        kept: bool ``[N]``, images that count; all of them by default.
    """
    members = one_hot(labels, num_classes)
    if kept is not None:
        members = members & kept[:, None]
    return members.sum(dim=0)


def class_share(counts: Tensor) -> Tensor:
    """Shares of the classes, scaled so that their mean is 0.1 for any number of classes, ``[C]`` (Eq. 13)."""
    return counts / counts.sum() * (len(counts) / 10)


def balanced_thresholds(counts: Tensor, tau: float = 0.84, tau_h: float = 0.95) -> Tensor:
    """``min(share + tau - std, tau_h)`` per class with the unbiased std of the scaled shares, ``[C]`` (Eqs. 6-13).

    Args:
        counts: images per class, float ``[C]``, C > 1.
        tau: threshold of a class with share 0 where all shares are equal.
        tau_h: highest threshold; there is no lowest one.
    """
    share = class_share(counts)
    return (share + tau - share.std()).clamp_max(tau_h)


def tail_classes(counts: Tensor, beta: float = 0.3, rule: str = "share") -> Tensor:
    """Classes with less than ``beta / C`` of the images, bool ``[C]`` (released code).

    With ``paper_scaled`` the scaled share is held against ``beta / C``, which Eq. 16 read literally says.

    Raises:
        ConfigError: ``beta`` is negative, or the rule unknown.
    """
    if beta < 0:
        raise ConfigError(f"tail_beta={beta}: tail classes have less than this part of an equal share; 0 is none")
    if rule not in ("share", "paper_scaled"):
        raise ConfigError(f"tail_rule {rule!r} is unknown; choose share or paper_scaled")
    cut = beta / 10.0 if rule == "share" else beta / len(counts)
    return class_share(counts) < cut


def assign(probabilities: Tensor, thresholds: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pseudo-labels ``[B]``, which are confident, and which are kept for their second class (bool ``[B]``).

    Args:
        probabilities: ``[B, C]``.
        thresholds: ``[C]``; the first class is confident strictly above its own (Eq. 14).
        tail: bool ``[C]``; an image that is not confident is kept if its second class is one of them (Eq. 16).
    """
    confidence, first = probabilities.max(dim=1)
    second = probabilities.scatter(1, first[:, None], 0.0).argmax(dim=1)  # Eq. 15
    confident = confidence > thresholds[first]
    rescued = (confidence <= thresholds[first]) & tail[second]
    return torch.where(rescued, second, first), confident, rescued


def storage_order(confident: Tensor, rescued: Tensor, batch_size: int) -> Tensor:
    """Positions of the kept samples: batch by batch of the loader, in each the confident first (released code).

    How many there are is read back to the host: it decides how many steps the client takes.
    """
    kept = (confident | rescued).nonzero()[:, 0]
    batch = kept // batch_size
    return kept[(2 * batch + rescued[kept]).argsort(stable=True)]


def batch_loss(logits: Tensor, thresholds: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A batch labelled by the model that it trains: loss, pseudo-labels ``[B]``, which are kept (bool ``[B]``).

    The loss is the mean cross-entropy of those kept, 0 if there is none; labels carry no gradient.
    """
    labels, confident, rescued = assign(logits.detach().softmax(dim=1), thresholds, tail)
    kept = confident | rescued
    losses = F.cross_entropy(logits, labels, reduction="none")
    return (losses * kept).sum() / kept.sum().clamp_min(1), labels, kept
