"""Combining client states. Sums run in the order given (client-id order), accumulated in float64."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from datamodules.common.errors import RunError

State = Mapping[str, Tensor]


def weighted_mean(states: Sequence[State], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
    """Weighted mean of every tensor of the states; weights are renormalised to sum to 1.

    Floating tensors keep their dtype. Integer tensors (batch-norm counters) become float32: they are
    averaged as numbers and truncated when a client loads them, as the released codes do.

    Raises:
        RunError: no state, weights of another length, or weights that are negative, not finite or all zero.
    """
    w = torch.as_tensor(weights, dtype=torch.float64)
    if not states or len(states) != len(w):
        raise RunError(f"aggregation: {len(states)} states but {len(w)} weights; give one weight per state")
    if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or float(w.sum()) <= 0:
        raise RunError(f"aggregation: weights {w.tolist()} cannot be normalised; they must be >= 0, finite, not all 0")
    shares = (w / w.sum()).tolist()
    mean = {}
    for name, first in states[0].items():
        total = first.to(torch.float64) * shares[0]
        for state, weight in zip(states[1:], shares[1:], strict=True):
            total.add_(state[name].to(torch.float64), alpha=weight)
        mean[name] = total.to(first.dtype if first.is_floating_point() else torch.float32)
    return mean


def tensor_distance(a: State, b: State, *, skip: Sequence[str] = (), total: str = "sum_tensor") -> float:
    """Distance between two states.

    Args:
        a: state; every tensor counts, buffers and batch-norm counters included.
        b: state with the same names.
        skip: names that do not count.
        total: ``"sum_tensor"`` adds the L2 norms of the per-tensor differences (RSCFed's released code);
            ``"global_l2"`` is the L2 norm of the concatenated difference (its paper).
    """
    norms = torch.stack(
        [torch.linalg.vector_norm(a[n].to(torch.float64) - b[n].to(torch.float64)) for n in a if n not in skip]
    )
    return float(norms.sum() if total == "sum_tensor" else torch.linalg.vector_norm(norms))


def num_bytes(state: State) -> int:
    """Bytes that sending the state takes."""
    return sum(t.numel() * t.element_size() for t in state.values())
