"""Numbers that change from step to step, such as ramps and rates, in a form that recorded steps follow."""

from collections.abc import Iterator
from typing import Any, cast, overload

import torch
from torch import Tensor, nn


class StepNumber:
    """A class attribute of a method that is assigned a number and reads as a 0-dim tensor.

    ::

        ramp = StepNumber()

        def on_train_start(self):
            self.ramp = exponential_ramp(self.visit.round, 30)

        def training_step(self, batch, batch_idx):
            return loss + self.ramp * consistency

    A step may be recorded once and replayed; a Python number would stay what it was at the recording. The tensor is a
    buffer that is neither sent nor saved, in the precision of the module and on its device.

    Args:
        start: the value before the first assignment.
    """

    def __init__(self, start: float = 0.0) -> None:
        self.start = start
        self.buffer = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.buffer = f"{name}_now"

    def register(self, module: nn.Module) -> None:
        """Give the module its buffer."""
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
    """The step numbers that a class and its bases declare."""
    for base in cls.__mro__:
        yield from (value for value in vars(base).values() if isinstance(value, StepNumber))
