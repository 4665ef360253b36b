"""What is logged in a round: sums over visits, and the means that its row has."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from benchmark.federation.metrics import pseudo_label_classes, pseudo_label_shares
from benchmark.federation.reference import Sums
from datamodules.common.errors import RunError
from methods.parts.engine_state import different_shapes


def sum_logged(parts: Iterable[tuple[str, Sums]]) -> Sums:
    """Logged sums and weights, added in order.

    Args:
        parts: where each was logged, for the message, and what was logged.

    Raises:
        RunError: a value is logged in two shapes.
    """
    total: Sums = {}
    first: dict[str, str] = {}
    for where, sums in parts:
        for name, (value, weight) in sums.items():
            before = total.get(name)
            if before is None:
                total[name], first[name] = (value, weight), where
                continue
            if before[0].shape != value.shape:
                raise RunError(different_shapes(name, before[0].shape, first[name], value.shape, where))
            total[name] = before[0] + value, before[1] + weight
    return total


def recorded_means(sums: Sums) -> dict[str, Any]:
    """Means for a round's row, without those that are ``None`` (see ``read_means``), and metrics of pseudo-labels."""
    means = {name: mean for name, mean in read_means(sums).items() if mean is not None}
    return {**means, **_pseudo_label_metrics(means)}


def read_means(sums: Sums) -> dict[str, float | list[float] | None]:
    """Means as they are recorded, fetched from the device in one read.

    A scalar is a number, a vector (per class) is a list. What is larger, or was never logged, is ``None``.
    """
    names = sorted(sums)
    flat = [part.detach().to(torch.float64).flatten() for name in names for part in sums[name]]
    numbers = torch.split(torch.cat(flat).cpu(), [len(part) for part in flat]) if flat else ()
    means: dict[str, float | list[float] | None] = {}
    for name, total, weight in zip(names, numbers[::2], numbers[1::2], strict=True):
        by, shape = float(weight), sums[name][0].shape
        if len(shape) > 1 or not by:
            means[name] = None
        elif len(shape) == 1:
            means[name] = [round(value / by, 6) for value in total.tolist()]
        else:
            means[name] = float(total) / by
    return means


def _pseudo_label_metrics(means: Mapping[str, Any]) -> dict[str, Any]:
    shares: dict[str, Any] = {}
    for suffix, derive in (("", pseudo_label_shares), ("_by_class", pseudo_label_classes)):
        selected, correct = (means.get(f"pseudo/{name}{suffix}") for name in ("selected", "correct"))
        if selected is not None and correct is not None:
            shares |= derive(selected, correct)
    return {f"pseudo/{name}": value for name, value in shares.items()}
