"""Debiased pseudo-labels (DPL): a rule on probabilities that any pseudo-labelling method can apply.

A method applies ``debias`` where it turns probabilities into pseudo-labels, to the confidence test and to the arg max
alike, and nowhere else: never inside a loss, never at test time.
"""

from torch import Tensor

from methods.parts.tensors import wide


def app_u(probabilities: Tensor) -> Tensor:
    """APP-U: the average predicted probabilities ``[C]`` of a client's unlabelled images (FedDB, Eq. 8).

    Args:
        probabilities: ``[B, C]``; all images count, also those that no threshold will pass.
    """
    return wide(probabilities).mean(dim=0)


def debias(probabilities: Tensor, eps: float = 0.0, prior: Tensor | None = None) -> Tensor:
    """Probabilities over their average, renormalised per sample: ``(p / prior) / sum(p / prior)``, ``[B, C]``.

    Source: FedDB (Zhu et al., IJCAI 2024), Algorithm 1. A class whose average is exactly 0 makes every row NaN, which
    passes no threshold; with ``eps`` it stays at 0 and the other classes are compared (the released code has no
    ``eps``). One sample, or equal samples, become uniform.

    Args:
        probabilities: ``[B, C]``; half precision is widened to float32.
        eps: smallest average that is divided by.
        prior: averages ``[C]``; default: those of ``probabilities`` themselves, the APP-U.
    """
    ratios = wide(probabilities) / (app_u(probabilities) if prior is None else prior).clamp_min(eps)
    return ratios / ratios.sum(dim=1, keepdim=True)
