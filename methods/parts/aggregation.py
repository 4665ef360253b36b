"""Averages of client states, summed in the given order (client-id order) in float64."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from datamodules.common.errors import RunError

State = Mapping[str, Tensor]


class Summand(Mapping[str, Tensor]):
    """Tensors of a client that exist only as a part of a mean; ``weighted_mean`` accepts them.

    Args:
        joint: object that holds their ``mean`` with other clients' tensors.
        visit: the client's visit.

    Raises:
        RunError: they are read.
    """

    def __init__(self, joint: Any, visit: Any) -> None:
        self.joint, self.visit = joint, visit

    def _refuse(self, *_: Any) -> NoReturn:
        raise RunError(
            f"the method reads the tensors of client {self.visit.client}, but with --sums by_rank only their mean with "
            "other clients' is available; set uploads_needed = 'each' in the method (methods/base.py)"
        )

    __getitem__ = __iter__ = __len__ = _refuse


def weighted_mean(states: Sequence[State], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
    """Compute the weighted mean of each tensor of the states; weights are normalised to sum to 1.

    Floating tensors keep their dtype. Integer tensors (batch-norm counters) become float32: they are averaged as
    numbers and truncated when they are loaded, as in the released codes.

    Raises:
        RunError: no states, a different number of weights, or weights that are negative, not finite or all zero.
    """
    w = checked_weights(states, weights)
    if isinstance(states[0], Summand):
        return states[0].joint.mean(states, w)
    shares = (w / w.sum()).tolist()
    mean = {}
    for name, first in states[0].items():
        total = first.to(torch.float64) * shares[0]
        for state, weight in zip(states[1:], shares[1:], strict=True):
            total.add_(state[name].to(torch.float64), alpha=weight)
        mean[name] = total.to(first.dtype if first.is_floating_point() else torch.float32)
    return mean


def checked_weights(states: Sequence[State], weights: Sequence[float] | Tensor) -> Tensor:
    """Return the weights of the states as float64.

    Raises:
        RunError: see ``weighted_mean``.
    """
    w = torch.as_tensor(weights, dtype=torch.float64)
    if not states or len(states) != len(w):
        raise RunError(f"aggregation: {len(states)} states but {len(w)} weights; give one weight per state")
    if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or float(w.sum()) <= 0:
        raise RunError(f"aggregation: weights {w.tolist()} cannot be normalised; they must be >= 0, finite, not all 0")
    return w


def num_bytes(state: State) -> int:
    """Number of bytes to send the state."""
    return sum(t.numel() * t.element_size() for t in state.values())
