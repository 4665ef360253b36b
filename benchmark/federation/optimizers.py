"""The optimisers of a visit: what ``configure_optimizers`` returned, their state between visits, their rates."""

from collections.abc import Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from benchmark.federation.hooks import describe
from datamodules.common.errors import RunError
from methods.base import FedMethod

OptimizerStates = list[list[dict[str, Any]]]
"""State of every parameter, by optimiser, in the order of ``configure_optimizers``."""


@dataclass
class Schedule:
    """A learning-rate scheduler, and when it is stepped: after every ``frequency``-th ``step`` or ``epoch``."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1


def configured(method: FedMethod) -> tuple[list[Optimizer], list[Schedule]]:
    """The optimisers and schedulers that ``configure_optimizers`` describes, in any of Lightning's forms.

    Raises:
        RunError: it is something else.
    """
    made = method.configure_optimizers()
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, (list, tuple)) for part in made):
        optimizers, schedules = list(made[0]), [_schedule(one) for one in made[1]]
    elif isinstance(made, (list, tuple)) and all(isinstance(one, Mapping) for one in made):
        optimizers = [one.get("optimizer") for one in made]
        schedules = [_schedule(one["lr_scheduler"]) for one in made if "lr_scheduler" in one]
    elif isinstance(made, Mapping):
        optimizers = [made.get("optimizer")]
        schedules = [_schedule(made["lr_scheduler"])] if "lr_scheduler" in made else []
    else:
        optimizers, schedules = list(made) if isinstance(made, (list, tuple)) else [] if made is None else [made], []
    for one in optimizers:
        if not isinstance(one, Optimizer):
            raise RunError(
                f"configure_optimizers returned {describe(one)} for an optimiser; return an optimiser, a list of them, "
                "([optimisers], [schedulers]), or a dict with 'optimizer' and 'lr_scheduler'"
            )
    return optimizers, schedules


def _schedule(made: Any) -> Schedule:
    given = made if isinstance(made, Mapping) else {"scheduler": made}
    if "scheduler" not in given or given.get("interval", "epoch") not in ("step", "epoch"):
        raise RunError(
            f"configure_optimizers describes a scheduler by {dict(given)!r}; give 'scheduler', and as 'interval' "
            "'step' or 'epoch'"
        )
    if isinstance(given["scheduler"], ReduceLROnPlateau):
        raise RunError(
            "configure_optimizers returned a ReduceLROnPlateau, which waits for a metric, and none is measured while a "
            "client trains; keep it out of what is returned and step it in on_train_epoch_end"
        )
    return Schedule(given["scheduler"], given.get("interval", "epoch"), int(given.get("frequency", 1)))


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
    if wrong := [scope for scope in scopes if scope not in ("shared", "personal", "local")]:
        raise RunError(f"optimizer_scopes names {wrong[0]!r}; an optimiser's state is shared, personal or local")
    if {"shared", "personal"} <= {*scopes}:
        raise RunError("optimizer_scopes names both shared and personal; an optimiser beside a shared one is local")
    scopes = scopes * len(optimizers) if len(scopes) == 1 else scopes
    if len(scopes) != len(optimizers):
        raise RunError(
            f"optimizer_scopes names {len(scopes)} scopes for {len(optimizers)} optimisers; give one for each"
        )
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
