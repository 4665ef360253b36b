"""Teachers that follow a student as an exponential moving average."""

from collections.abc import Iterable

import torch
from torch import Tensor


def ema_decay(step: Tensor | float, decay: float, ramp: bool = True) -> Tensor:
    """``min(1 - 1/(step + 1), decay)`` for the 0-based ``step``, in float64: the first update copies the student."""
    ramped = 1.0 - 1.0 / (torch.as_tensor(step, dtype=torch.float64) + 1.0)
    return torch.clamp(ramped, max=decay) if ramp else torch.full_like(ramped, decay)


@torch.no_grad()
def ema_update(teacher: Iterable[Tensor], student: Iterable[Tensor], decay: Tensor | float) -> None:
    """``teacher <- decay * teacher + (1 - decay) * student`` in place, parameter by parameter."""
    share = torch.as_tensor(1.0 - decay)
    for target, source in zip(teacher, student, strict=True):
        target.copy_(target.lerp(source.detach(), share.to(target.dtype)))
