"""Numbers that change between steps, such as ramps and rates, in a form that works in recorded steps."""

from collections.abc import Iterator
from typing import Any, cast, overload

import torch
from torch import Tensor, nn


class StepNumber:
    """A class attribute that is assigned numbers and read as a 0-dim tensor.

    ::

        ramp = StepNumber()

        def on_train_start(self):
            self.ramp = exponential_ramp(self.visit.round, 30)

        def training_step(self, batch, batch_idx):
            return loss + self.ramp * consistency

    A step may be recorded once and replayed; a Python number would keep its value from the recording. The tensor is a
    buffer on the module's device and in its precision; it is neither sent nor saved.

    Args:
        start: the value before the first assignment.
    """

    def __init__(self, start: float = 0.0) -> None:
        self.start = start
        self.buffer = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.buffer = f"{name}_now"

    def register(self, module: nn.Module) -> None:
        """Register the buffer with the module."""
        module.register_buffer(self.buffer, torch.full((), self.start), persistent=False)

    @overload
    def __get__(self, module: None, owner: type) -> "StepNumber": ...

    @overload
    def __get__(self, module: nn.Module, owner: type) -> Tensor: ...

    def __get__(self, module: nn.Module | None, owner: type) -> "StepNumber | Tensor":
        return self if module is None else cast(Tensor, module._buffers[self.buffer])

    def __set__(self, module: nn.Module, value: float | Tensor) -> None:
        buffer: Any = module._buffers[self.buffer]
        buffer.fill_(value.detach() if isinstance(value, Tensor) else value)


def step_numbers(cls: type) -> Iterator[StepNumber]:
    """Yield the step numbers that a class and its bases declare."""
    for base in cls.__mro__:
        yield from (value for value in vars(base).values() if isinstance(value, StepNumber))
