"""Half precision (``16-mixed``): losses are scaled up before the backward pass, for float16 has no small gradients."""

from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import SGD, Optimizer

from datamodules.common.errors import ConfigError, RunError
from methods.base import FedMethod

FIRST_SCALE = 2.0**10
"""Gradients of 64 are the first that overflow then, and those below 6e-11 vanish."""


class LossScaler(GradScaler):
    """Torch's scaler as a fit needs it: every fit begins with the same scale, in the same tensors.

    So it is no state of a client: no visit depends on another, and a run that is resumed meets the scale it would have
    met. Within a ``training_step`` the scale stands still, also where several optimisers step; it moves after it.

    Args:
        device: where the loss is.
        scale: that a fit begins with.
    """

    def __init__(self, device: torch.device, scale: float = FIRST_SCALE) -> None:
        super().__init__(device.type, init_scale=scale)
        self._fresh = self.state_dict()
        self._lazy_init_scale_growth_tracker(device)

    def begin(self, optimizers: list[Optimizer]) -> None:
        """A fit begins with these optimisers."""
        self.load_state_dict(self._fresh)
        self._per_optimizer_states.clear()
        for optimizer in optimizers:
            if isinstance(optimizer, SGD):
                begin_momentum(optimizer)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide gradients by the scale, unless that has been done in this ``training_step``."""
        if self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            super().unscale_(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Take the optimiser's step, unless a gradient is not finite.

        Raises:
            RunError: the optimiser has stepped in this ``training_step`` already.
        """
        if self._per_optimizer_states[id(optimizer)]["stage"] is OptState.STEPPED:
            raise RunError(
                "an optimiser steps twice in one training_step, and in 16-mixed the scale of the loss moves after it "
                "only; use one optimiser for each, or --precision bf16-mixed or 32-true"
            )
        return super().step(optimizer, *args, **kwargs)

    def overflow(self, optimizer: Optimizer) -> Tensor:
        """1 where a gradient of the optimiser is not finite, else 0; 0-dim, on the device."""
        found: Tensor
        (found,) = self._found_inf_per_device(optimizer).values()
        return found

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Move the scale after a ``training_step`` in which an optimiser stepped."""
        if self._per_optimizer_states:
            super().update(new_scale)


def begin_momentum(optimizer: SGD) -> None:
    """Give momentum a tensor of zeros where it has none: fused SGD makes one and leaves it as memory happens to be if
    the first step is left out.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] and group["fused"] else ():
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def loss_scaler(fabric: Fabric, method: FedMethod) -> LossScaler | None:
    """A scaler where Fabric's precision has one.

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
    """Arguments of Fabric for a precision: by itself it takes bfloat16 for ``16-mixed`` on a CPU."""
    if precision == "16-mixed" and accelerator == "cpu":
        return {"plugins": MixedPrecision("16-mixed", "cpu")}
    return {"precision": precision}


__all__ = ["LossScaler", "fabric_precision", "loss_scaler"]
