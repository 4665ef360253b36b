"""Half precision (``16-mixed``): losses are scaled up before the backward pass, so small gradients do not vanish."""

from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import SGD, Optimizer

from datamodules.common.errors import ConfigError
from methods.base import FedMethod

FIRST_SCALE = 2.0**10
"""With it, gradients from 64 overflow and those below 6e-11 vanish."""


class LossScaler(GradScaler):
    """Torch's ``GradScaler``, but every fit begins with the same scale, in the same tensors.

    So the scale is not part of a client's state: no visit depends on another, and a resumed run uses the same scales.
    The scale is constant within a ``training_step``, even if several optimisers step, and is updated after it.

    Args:
        device: of the loss.
        scale: at the beginning of each fit.
    """

    def __init__(self, device: torch.device, scale: float = FIRST_SCALE) -> None:
        super().__init__(device.type, init_scale=scale)
        self._fresh = self.state_dict()
        self._lazy_init_scale_growth_tracker(device)

    def begin(self, optimizers: list[Optimizer]) -> None:
        """Begin a fit with these optimisers, momentum with zeros: fused SGD leaves it undefined if it skips a step."""
        self.load_state_dict(self._fresh)
        self._per_optimizer_states.clear()
        for optimizer in optimizers:
            for group in optimizer.param_groups if isinstance(optimizer, SGD) else ():
                for parameter in group["params"] if group["momentum"] and group["fused"] else ():
                    optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide gradients by the scale, unless this ``training_step`` has done so already."""
        if self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            super().unscale_(optimizer)

    def overflow(self, optimizer: Optimizer) -> Tensor:
        """1 where a gradient of the optimiser is not finite, else 0; 0-dim, on the device."""
        (found,) = self._found_inf_per_device(optimizer).values()
        return found

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Update the scale after a ``training_step`` in which an optimiser has stepped."""
        if self._per_optimizer_states:
            super().update(new_scale)


def loss_scaler(fabric: Fabric, method: FedMethod) -> LossScaler | None:
    """A loss scaler if Fabric's precision has one, otherwise ``None``.

    Raises:
        ConfigError: the method cannot train with a scaled loss.
    """
    if getattr(fabric._precision, "scaler", None) is None:
        return None
    if method.no_loss_scaling:
        raise ConfigError(
            f"{type(method).__name__} cannot train in 16-mixed: {method.no_loss_scaling}; use --precision bf16-mixed "
            "(GPUs from Ampere on) or 32-true"
        )
    return LossScaler(fabric.device)


def fabric_precision(precision: str, accelerator: str) -> dict[str, Any]:
    """Fabric's arguments for a precision; by default Fabric uses bfloat16 for ``16-mixed`` on a CPU."""
    if precision == "16-mixed" and accelerator == "cpu":
        return {"plugins": MixedPrecision("16-mixed", "cpu")}
    return {"precision": precision}
