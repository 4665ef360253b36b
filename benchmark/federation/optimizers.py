"""The optimisers of a visit: what ``configure_optimizers`` returned, their state between visits, their rates."""

from collections.abc import Mapping, Sequence
from ctypes import c_float
from typing import Any

from lightning.pytorch.core.optimizer import _configure_optimizers, _configure_schedulers_automatic_opt
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from datamodules.common.errors import RunError
from methods.base import FedMethod

OptimizerStates = list[list[dict[str, Any]]]
"""State of every parameter, by optimiser, in the order of ``configure_optimizers``."""


def configured(method: FedMethod) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """The optimisers and schedulers that ``configure_optimizers`` describes, in any of Lightning's forms.

    Lightning itself refuses anything else.

    Raises:
        RunError: a scheduler waits for a metric.
    """
    made = method.configure_optimizers()
    if made is None:
        return [], []
    optimizers, schedulers, monitor = _configure_optimizers(made)
    schedules = _configure_schedulers_automatic_opt(schedulers, monitor)
    if any(schedule.reduce_on_plateau for schedule in schedules):
        raise RunError(
            "configure_optimizers returned a ReduceLROnPlateau, which waits for a metric, and none is measured while a "
            "client trains; keep it out of what is returned and step it in on_train_epoch_end"
        )
    return optimizers, schedules


def load_states(optimizers: Sequence[Optimizer], states: OptimizerStates) -> None:
    """Give optimisers copies of stored states; an optimiser without stored state starts afresh.

    Raises:
        RunError: the states are those of other optimisers.
    """
    stored_sizes = [len(own) for own in states]
    if states and stored_sizes != [len(parameters_of(optimizer)) for optimizer in optimizers]:
        raise RunError(
            "configure_optimizers returned other optimisers than at the last visit, whose state was kept; return the "
            "same ones, or let optimizer_scopes say 'local'"
        )
    for optimizer, stored in zip(optimizers, states, strict=bool(states)):
        for parameter, state in zip(parameters_of(optimizer), stored, strict=True):
            if state:
                optimizer.state[parameter] = cloned(state)


def cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state, with tensors of its own."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def kept_states(method: FedMethod, optimizers: Sequence[Optimizer]) -> OptimizerStates:
    """The optimiser state that ``optimizer_scopes`` keeps for the client's next visit or, if shared, for anyone's.

    Raises:
        RunError: ``optimizer_scopes`` does not fit the optimisers.
    """
    scopes = list(method.optimizer_scopes())
    if not ({*scopes} <= {"personal", "local"} or {*scopes} <= {"shared", "local"}):
        raise RunError(
            f"optimizer_scopes names {', '.join(map(repr, scopes))}; each is personal or local, or each shared or local"
        )
    scopes = scopes * len(optimizers) if len(scopes) == 1 else scopes
    if {*scopes} == {"local"}:
        return []
    return [
        [{} if scope == "local" else dict(optimizer.state.get(p, {})) for p in parameters_of(optimizer)]
        for scope, optimizer in zip(scopes, optimizers, strict=True)
    ]


def round_rates(optimizers: Sequence[Optimizer]) -> None:
    """On a GPU, round learning rates to float32, as recorded steps hold them: all engines then take the same steps."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], float) and reads_single(group["params"]):
                group["lr"] = c_float(group["lr"]).value


def reads_single(parameters: Sequence[Tensor]) -> bool:
    """Whether fused kernels read the rate as float32 on the device of these parameters."""
    return bool(parameters) and parameters[0].device.type != "cpu"


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimiser, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether any parameter of the optimiser has a gradient."""
    return any(parameter.grad is not None for parameter in parameters_of(optimizer))
