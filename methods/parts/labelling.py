"""Targets from predictions, and how sure they are. Shapes: ``B`` samples, ``C`` classes."""

from torch import Tensor

from methods.parts.tensors import wide


def pseudo_labels(
    logits: Tensor, threshold: float = 0.0, temperature: float = 1.0, soft: bool = False
) -> tuple[Tensor, Tensor]:
    """Targets from the logits ``[B, C]`` of another view, without gradient.

    Returns:
        the most probable classes, int64 ``[B]`` (``soft``: probabilities at ``temperature``, ``[B, C]``), and which
        samples have a largest probability, at temperature 1, of ``threshold`` or more, bool ``[B]``.
    """
    logits = wide(logits.detach())
    confidence, hard = logits.softmax(dim=1).max(dim=1)
    return (logits / temperature).softmax(dim=1) if soft else hard, confidence >= threshold
