"""What an engine needs of a method that it runs: its registered tensors, its step numbers, and sums of what it logs.

Methods use these only through ``FedMethod``.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.common.errors import RunError
from methods.models.norm import static_norms
from methods.parts.tensors import wide
from methods.parts.visits import Site

APART = "logged/"
"""Prefix for a method's logged value whose name is reserved by the framework."""

SHARES = ("selected", "correct", "right", "wrong", "accuracy", "correct_per_wrong", "balance")
"""Columns ``pseudo/...`` of ``Site.report_pseudo_labels`` and those derived from them."""

FRAMEWORK = frozenset(
    [
        "round", "warmup", "acc", "acc_by_class", "acc_clients", "acc_worst_clients", "auc", "precision", "recall",
        "participants", "visits", "steps", "skipped", "bytes_up", "bytes_down", "timing",
        *(f"pseudo/{share}{suffix}" for share in SHARES for suffix in ("", "_by_class")),
    ]
)  # fmt: skip
"""Columns reserved by the framework; with automatic optimisation also ``loss``."""


def column_of(name: str, automatic: bool) -> str:
    """Return the column of a logged value: its name, or ``logged/<name>`` if the framework reserves that name.

    Two names never share a column.

    Args:
        name: name given by the method.
        automatic: whether the framework takes the steps and logs their ``loss``.
    """
    reserved = name in FRAMEWORK or name.startswith(("server/", APART)) or (automatic and name == "loss")
    return f"{APART}{name}" if reserved else name


Logged = tuple[str, torch.Size, torch.dtype]
"""Name, shape and type of a logged value."""


def different_shapes(name: str, first: torch.Size, here: str, second: torch.Size, there: str) -> str:
    """Error message for a value logged in two shapes, which cannot be averaged."""
    return (
        f"{name!r} is logged in the shape {list(first)} {here}, and in the shape {list(second)} {there}; log one shape "
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


class StepNumber:
    """A class attribute that is assigned numbers and read as a 0-dim tensor; 0 at first.

    ::

        ramp = StepNumber()

        def on_train_start(self):
            self.ramp = exponential_ramp(self.visit.round, 30)

        def training_step(self, batch, batch_idx):
            return loss + self.ramp * consistency

    A step may be recorded once and replayed; a Python number would keep its value from the recording. The tensor is a
    buffer on the module's device and in its precision; it is neither sent nor saved.
    """

    buffer: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.buffer = f"{name}_now"

    def __get__(self, module: nn.Module | None, owner: type) -> Tensor:
        return self if module is None else module._buffers[self.buffer]  # type: ignore[return-value]

    def __set__(self, module: nn.Module, value: float | Tensor) -> None:
        module.get_buffer(self.buffer).fill_(value.detach() if isinstance(value, Tensor) else value)


def state_of(module: nn.Module, keep_vars: bool = False) -> dict[str, Tensor]:
    """Return a module's ``state_dict``, with the names that parts have before they are compiled."""
    return {name.replace("_orig_mod.", ""): value for name, value in module.state_dict(keep_vars=keep_vars).items()}


class RegisteredTensors:
    """The registered tensors of a method, looked up once.

    From then on each of them must stay the same tensor, in the same memory.

    Args:
        module: the method.
    """

    def __init__(self, module: nn.Module) -> None:
        self.originals = state_of(module, keep_vars=True)
        self.by_name = {name: tensor.detach() for name, tensor in self.originals.items()}
        self.static_norms = static_norms(module)

    def replaced_in(self, module: nn.Module) -> list[str]:
        """Names of registered tensors that have been replaced, moved to other memory, added or removed since then."""
        live = state_of(module, keep_vars=True)

        def replaced(name: str) -> bool:
            same = live.get(name) is self.originals.get(name)
            return not same or live[name].data_ptr() != self.by_name[name].data_ptr()

        return [name for name in {**self.originals, **live} if replaced(name)]


@dataclass
class EngineState:
    """The engine's settings on a method; the defaults apply outside an engine, e.g. in a plain ``Trainer``.

    Args:
        autocast: creates the run's mixed-precision context.
        tally: sums of the current visit or aggregation; ``None`` between them.
        site: of the current visit; ``None`` between visits.
        tensors: the registered tensors; ``None``: look them up each time.
    """

    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    tally: Tally | None = None
    site: Site | None = None
    tensors: RegisteredTensors | None = None
