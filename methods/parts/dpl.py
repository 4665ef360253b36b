"""Debiased pseudo-labels (DPL): a rule on probabilities that any pseudo-labelling method can apply.

A method applies ``debias`` when it turns probabilities into pseudo-labels, both for the confidence test and for the arg
max, and nowhere else: never inside a loss, never at test time.
"""

from torch import Tensor

from methods.parts.tensors import wide


def app_u(probabilities: Tensor) -> Tensor:
    """Average predicted probabilities ``[C]`` of a client's unlabelled images, the APP-U (FedDB, Eq. 8).

    Args:
        probabilities: ``[B, C]``; all images, including those below the threshold.
    """
    return wide(probabilities).mean(dim=0)


def debias(probabilities: Tensor, eps: float = 0.0, prior: Tensor | None = None) -> Tensor:
    """Divide probabilities by their average and normalise per sample: ``(p / prior) / sum(p / prior)``, ``[B, C]``.

    Source: FedDB (Zhu et al., IJCAI 2024), Algorithm 1. A class whose average is exactly 0 makes every row NaN, which
    passes no threshold; with ``eps`` its probability stays 0 and the other classes are compared (the released code has
    no ``eps``). A single sample, or equal samples, become uniform.

    Args:
        probabilities: ``[B, C]``; half precision is widened to float32.
        eps: lower bound of the divisor.
        prior: averages ``[C]``; default: those of ``probabilities`` themselves, the APP-U.
    """
    ratios = wide(probabilities) / (app_u(probabilities) if prior is None else prior).clamp_min(eps)
    return ratios / ratios.sum(dim=1, keepdim=True)
