"""Weighted sums of values logged in a visit, and the names of their columns in a round's record."""

import torch
from torch import Tensor

from datamodules.common.errors import RunError
from methods.parts.tensors import wide

APART = "logged/"
"""Prefix for a method's logged value whose name is reserved by the framework."""

SHARES = ("selected", "correct", "right", "wrong", "accuracy", "correct_per_wrong", "balance")
"""Columns ``pseudo/...`` of ``Site.report_pseudo_labels`` and those derived from them."""

FRAMEWORK = frozenset(
    {
        "round",
        "warmup",
        "acc",
        "acc_by_class",
        "acc_clients",
        "acc_worst_clients",
        "auc",
        "precision",
        "recall",
        "participants",
        "visits",
        "steps",
        "skipped",
        "overflow",
        "bytes_up",
        "bytes_down",
        "timing",
        *(f"pseudo/{share}{suffix}" for share in SHARES for suffix in ("", "_by_class")),
    }
)
"""Columns reserved by the framework; with automatic optimisation also ``loss``."""


def own_column(name: str, automatic: bool) -> str:
    """Return the column of a logged value: its name, or ``logged/<name>`` if the framework reserves that name.

    Two names never share a column.

    Args:
        name: name given by the method.
        automatic: whether the framework takes the steps and logs their ``loss``.
    """
    taken = name in FRAMEWORK or name.startswith(("server/", APART)) or (automatic and name == "loss")
    return f"{APART}{name}" if taken else name


Logged = tuple[str, torch.Size, torch.dtype]
"""Name, shape and type of a logged value."""


def different_shapes(name: str, one: torch.Size, here: str, other: torch.Size, there: str) -> str:
    """Error message for a value logged in two shapes, which cannot be averaged."""
    return (
        f"{name!r} is logged in the shape {list(one)} {here}, and in the shape {list(other)} {there}; log one shape "
        "under one name"
    )


class Tally:
    """Weighted sums of values logged in a visit, kept on the device and updated in place.

    A value may have different shapes in different visits, such as one number per upload. Each shape has separate sums,
    so that those of a recorded step stay in place. Sums are float32 or wider.
    """

    def __init__(self) -> None:
        self.sums: dict[Logged, tuple[Tensor, Tensor]] = {}
        self.touched: dict[str, Logged] = {}

    def add(self, name: str, value: Tensor, weight: float) -> None:
        """Add ``weight * value`` to the sum and ``weight`` to the weights of ``name``.

        Raises:
            RunError: the visit has logged ``name`` in a different shape.
        """
        part = wide(value.detach()) * weight
        key = self.touched.setdefault(name, (name, part.shape, part.dtype))
        if part.shape != key[1]:
            raise RunError(different_shapes(name, key[1], "first", part.shape, "then"))
        if key not in self.sums:
            self.sums[key] = torch.zeros_like(part), torch.zeros((), dtype=torch.float64, device=part.device)
        total, weights = self.sums[key]
        total += part
        weights += weight

    def mean(self, name: str) -> Tensor | None:
        """Return the weighted mean of ``name``; ``None`` if this visit has not logged it."""
        if name not in self.touched:
            return None
        total, weights = self.sums[self.touched[name]]
        return total / weights.to(total.dtype)

    def clear(self) -> None:
        """Reset for another visit, reusing the tensors."""
        self.touched.clear()
        for total, weights in self.sums.values():
            total.zero_()
            weights.zero_()

    def taken(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return copies of the sums and weights of the values logged in this visit."""
        return {name: (self.sums[key][0].clone(), self.sums[key][1].clone()) for name, key in self.touched.items()}
