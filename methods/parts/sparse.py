"""Messages that hold only the entries that have changed."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def sparse(values: Tensor, cut: float) -> Tensor:
    """Zero the values with magnitude up to ``cut``; gradients pass through the others only."""
    return torch.where(values.abs() <= cut, 0.0, values)


def differs(new: Tensor, old: Tensor, delta: float) -> Tensor:
    """Mark entries that are more than ``delta`` apart, or not a number, as bool in their shape."""
    return ~((new - old).abs() <= delta)


def sparse_bytes(sent: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> int:
    """Bytes of sparse updates: the sent values plus one bit per entry as a mask, or all values if that is smaller.

    A tensor of which nothing is sent costs nothing.

    Args:
        sent: by name, a bool mask of the entries that are sent.
        values: the tensors, by the same names or more.
    """
    if not sent:
        return 0
    counts = torch.stack([mask.count_nonzero() for mask in sent.values()]).tolist()
    total = 0
    for count, (name, mask) in zip(counts, sent.items(), strict=True):
        size = values[name].element_size()
        total += min(count * size + -(-mask.numel() // 8), mask.numel() * size) if count else 0
    return total


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Flatten tensors to one vector, tensor by tensor in row-major order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert ``flat``: views of the vector with the names and shapes of ``like``."""
    parts = torch.split(vector, [tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}
