"""What a visit logs: weighted sums on the device, and the columns of a round's record that their means become."""

import torch
from torch import Tensor

from datamodules.common.errors import RunError
from methods.parts.tensors import wide

APART = "logged/"
"""What stands before a name that a method has given to a value of its own, where the name is the framework's."""

SHARES = ("selected", "correct", "right", "wrong", "accuracy", "correct_per_wrong", "balance")
"""Columns ``pseudo/...`` of ``Site.report_pseudo_labels`` and what follows from them."""

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
"""Columns that only the framework fills; with automatic optimisation ``loss`` is its own, too."""


def own_column(name: str, automatic: bool) -> str:
    """The column of a value that a method logs: its name, or ``logged/<name>`` where that name is the framework's.

    Two names never share a column.

    Args:
        name: as the method gives it.
        automatic: whether the framework takes the steps, and so logs their ``loss``.
    """
    taken = name in FRAMEWORK or name.startswith(("server/", APART)) or (automatic and name == "loss")
    return f"{APART}{name}" if taken else name


Logged = tuple[str, torch.Size, torch.dtype]
"""A value that is logged: its name, shape and type."""


def different_shapes(name: str, one: torch.Size, here: str, other: torch.Size, there: str) -> str:
    """What an error says of a value that is logged in two shapes, which have no common mean."""
    return (
        f"{name!r} is logged in the shape {list(one)} {here}, and in the shape {list(other)} {there}; log one shape "
        "under one name"
    )


class Tally:
    """Weighted sums of what a visit logs, kept on the device and added to in place.

    A value may have another shape in another visit, such as one number per upload. Each shape has sums of its own, so
    that those of a recorded step stay where they are. Sums are float32 or wider.
    """

    def __init__(self) -> None:
        self.sums: dict[Logged, tuple[Tensor, Tensor]] = {}
        self.touched: dict[str, Logged] = {}

    def add(self, name: str, value: Tensor, weight: float) -> None:
        """Add ``weight * value`` to the sum and ``weight`` to the weights of ``name``.

        Raises:
            RunError: the visit has logged ``name`` in another shape.
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
        """Weighted mean of ``name``; ``None`` if this visit has not logged it."""
        if name not in self.touched:
            return None
        total, weights = self.sums[self.touched[name]]
        return total / weights.to(total.dtype)

    def clear(self) -> None:
        """Begin another visit, in the same tensors."""
        self.touched.clear()
        for total, weights in self.sums.values():
            total.zero_()
            weights.zero_()

    def taken(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Copies of the sums and weights that this visit has touched."""
        return {name: (self.sums[key][0].clone(), self.sums[key][1].clone()) for name, key in self.touched.items()}
