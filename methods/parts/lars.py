"""LARS: stochastic gradient descent whose step is relative to the size of what it moves, layer by layer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from datamodules.common.errors import ConfigError


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017, Algorithm 1), as contrastive learning uses it.

    For a weight w with gradient g: ``d = g + weight_decay w``, ``u = trust ||w|| / ||d|| d``,
    ``v <- momentum v + lr u`` and ``w <- w - v``. You et al. divide by ``||g|| + weight_decay ||w||``, the released
    code for contrastive learning by the norm of d. Where w or d is 0, ``u = d``. Tensors with one axis, that is biases
    and what normalisation layers learn, are exempt: there ``u = g`` (SimCLR, BYOL).

    Every step works on the device alone: no norm is read back, and ``lr`` may be a 0-dim tensor.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        momentum: 0 keeps no buffers.
        weight_decay: of what is not exempt.
        trust: how long a step is, relative to the weight, at rate 1.

    Raises:
        ConfigError: a negative argument, or momentum of 1 or more.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        wrong = float(lr) < 0 or not 0 <= momentum < 1 or weight_decay < 0 or trust < 0
        if wrong:
            raise ConfigError(
                f"LARS: lr={lr}, momentum={momentum}, weight_decay={weight_decay}, trust={trust}; all must be 0 or "
                "more, the momentum below 1"
            )
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient; the gradients stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        update = gradient if parameter.ndim <= 1 else scaled(parameter, gradient, group["weight_decay"], group["trust"])
        update = group["lr"] * update
        if group["momentum"]:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            update = state["momentum_buffer"].mul_(group["momentum"]).add_(update)
        parameter.sub_(update)


def scaled(weight: Tensor, gradient: Tensor, weight_decay: float, trust: float) -> Tensor:
    """``trust ||w|| / ||d|| d`` with ``d = g + weight_decay w``, shaped as ``weight``; see ``LARS``."""
    decayed = gradient + weight_decay * weight
    size, slope = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(decayed)
    return torch.where((size > 0) & (slope > 0), trust * size / slope, 1.0) * decayed
