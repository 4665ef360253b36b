"""State that an engine sets on a method while running it; methods use it only through ``FedMethod``."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from methods.models.norm import static_norms
from methods.parts.tally import Tally


class RegisteredTensors:
    """The registered tensors of a method, looked up once.

    From then on each of them must stay the same tensor, in the same memory.

    Args:
        module: the method.
    """

    def __init__(self, module: nn.Module) -> None:
        self.originals = module.state_dict(keep_vars=True)
        self.by_name = {name: tensor.detach() for name, tensor in self.originals.items()}
        self.static_norms = static_norms(module)

    def replaced_in(self, module: nn.Module) -> list[str]:
        """Names of registered tensors that have been replaced, moved to other memory, added or removed since then."""
        live = module.state_dict(keep_vars=True)

        def replaced(name: str) -> bool:
            same = live.get(name) is self.originals.get(name)
            return not same or live[name].data_ptr() != self.by_name[name].data_ptr()

        return [name for name in {**self.originals, **live} if replaced(name)]


@dataclass
class EngineState:
    """The engine's settings on a method; the defaults apply outside an engine, e.g. in a plain ``Trainer``.

    Args:
        autocast: creates the run's mixed-precision context.
        loss_scaler: scales losses in ``16-mixed``; ``None`` in other precisions.
        tally: sums of the current visit or aggregation; ``None`` between them.
        tensors: the registered tensors; ``None``: look them up each time.
    """

    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    loss_scaler: Any = None
    tally: Tally | None = None
    tensors: RegisteredTensors | None = None

    def log(self, name: str, value: Tensor) -> None:
        """Log one of the framework's own values to the current tally."""
        if self.tally is not None:
            self.tally.add(name, value, 1.0)


__all__ = ["EngineState", "RegisteredTensors"]
