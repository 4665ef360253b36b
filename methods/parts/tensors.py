"""Small functions of tensors: precisions, losses, ramps and moving averages; none synchronises with the device.

Shapes: ``B`` samples, ``C`` classes.
"""

from collections.abc import Iterable
from math import exp

import torch
import torch.nn.functional as F
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """Cast half-precision values to float32; leave float32 and float64 unchanged."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Labels ``[...]`` as bool ``[..., C]``; unlike ``torch.nn.functional.one_hot``, without a device sync."""
    return labels[..., None] == torch.arange(num_classes, device=labels.device)


def set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Set the parameter's gradient, in the parameter's memory format as fused optimisers require."""
    same = gradient.stride() == parameter.stride()
    parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values ``[B]`` where the mask is set; 0, with gradient 0, if it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def smoothed_divergence(targets: Tensor, logits: Tensor, eps: float = 1e-10) -> Tensor:
    """Per-sample KL(t || p), ``[B]``, where p is the softmax of the logits; only p gets a gradient.

    ``eps`` is added to every entry of t and p, as in SAGE's released code; for one-hot targets the value is nearly the
    cross-entropy, but at most ``-ln(eps)``, 23 by default.

    Args:
        targets: distributions ``[B, C]``.
        logits: ``[B, C]``, float32 or wider.
    """
    t, p = targets.detach() + eps, logits.softmax(dim=1) + eps
    return (t * (t.log() - p.log())).sum(dim=1)


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Per-sample ``KL(softmax(target) || softmax(logits))``, ``[B]``; both arguments ``[B, C]``."""
    log_p, log_t = logits.log_softmax(dim=1), target.log_softmax(dim=1)
    return F.kl_div(log_p, log_t, reduction="none", log_target=True).sum(dim=1)


def proximal_term(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """``||theta - theta_0||^2 / 2`` over all parameters (FedProx, Li et al., MLSys 2020, without the factor mu)."""
    return 0.5 * torch.stack([(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]).sum()


def exponential_ramp(step: float, length: float) -> float:
    """``exp(-5 (1 - min(step, length) / length)^2)``, the usual consistency ramp-up; 1 for a ramp of length 0.

    A negative ``step`` counts as 0.
    """
    if length <= 0:
        return 1.0
    return exp(-5.0 * (1.0 - min(max(step, 0.0), length) / length) ** 2)


def ema_decay(step: Tensor | float, decay: float, ramp: bool = True) -> Tensor:
    """``min(1 - 1/(step + 1), decay)`` for the 0-based ``step``, in float64: the first update copies the student.

    Without ``ramp`` it is ``decay``.
    """
    ramped = 1.0 - 1.0 / (torch.as_tensor(step, dtype=torch.float64) + 1.0)
    return torch.clamp(ramped, max=decay) if ramp else torch.full_like(ramped, decay)


@torch.no_grad()
def ema_update(teacher: Iterable[Tensor], student: Iterable[Tensor], decay: Tensor | float) -> None:
    """``teacher <- decay * teacher + (1 - decay) * student`` in place, parameter by parameter."""
    targets, sources = list(teacher), list(student)
    share = torch.as_tensor(1.0 - decay).to(targets[0].dtype)
    torch._foreach_lerp_(targets, sources, [share] * len(targets))


def app_u(probabilities: Tensor) -> Tensor:
    """Average predicted probabilities ``[C]`` of a client's unlabelled images, the APP-U (FedDB, Eq. 8).

    Args:
        probabilities: ``[B, C]``; all images, including those below the threshold.
    """
    return wide(probabilities).mean(dim=0)


def debias(probabilities: Tensor) -> Tensor:
    """Divide probabilities by their average, the APP-U, and normalise per sample, ``[B, C]``.

    Source: FedDB (Zhu et al., IJCAI 2024), Algorithm 1. A class whose average is exactly 0 makes every row NaN, which
    passes no threshold (as released). A single sample, or equal samples, become uniform.

    Args:
        probabilities: ``[B, C]``; half precision is widened to float32.
    """
    ratios = wide(probabilities) / app_u(probabilities)
    return ratios / ratios.sum(dim=1, keepdim=True)
