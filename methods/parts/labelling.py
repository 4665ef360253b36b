"""Targets from predictions, and how sure they are. Shapes: ``B`` samples, ``C`` classes."""

from math import log

from torch import Tensor


def sharpen(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """``p^(1/T)`` renormalised over classes, ``[B, C]`` (MixMatch; RSCFed Eq. 2 with T = 0.5)."""
    powered = probabilities.pow(1.0 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum_c p ln(p + 1e-6)`` per sample, ``[B]``, in nats (FedIRM's released code)."""
    return -(probabilities * (probabilities + 1e-6).log()).sum(dim=1)


def entropy_threshold(rule: float | str, num_classes: int) -> float:
    """Entropy below which a sample counts as certain: a number, or ``"ln_scaled"`` = 2 ln(C) / ln(5)."""
    return 2.0 * log(num_classes) / log(5.0) if rule == "ln_scaled" else float(rule)
