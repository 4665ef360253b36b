"""A visit as a fit: the steps of a client, or of the server, in the order of Lightning's ``Trainer.fit``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from datamodules.common.errors import RunError
from datamodules.views.batches import Batch
from methods.base import FedMethod

OptimizerStates = list[list[dict[str, Any]]]
"""State of every parameter, by optimiser, in the order of ``configure_optimizers``."""


@dataclass
class Schedule:
    """A learning-rate scheduler, and when it moves: after every ``frequency``-th ``step`` or ``epoch``."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1


class Fit:
    """One fit of the method as it stands. While it lasts, it is what the method sees as ``self.trainer``.

    Args:
        method: trained in place.
        states: state that the optimisers take up (``OptimizerStates``); empty: they start anew.
        callbacks: Lightning callbacks.
        loggers: what ``self.logger`` and ``self.loggers`` give.
        rank: rank of this process.
        ranks: number of processes.
    """

    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str | None = None
    accumulate_grad_batches = 1
    training, sanity_checking, validating, testing, predicting = True, False, False, False, False

    def __init__(
        self,
        method: FedMethod,
        states: OptimizerStates,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Any] = (),
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.lightning_module = method
        self.callbacks, self.loggers = list(callbacks), list(loggers)
        self.global_rank, self.world_size = rank, ranks
        self.current_epoch = self.global_step = self.max_epochs = 0
        self.optimizers, self.lr_scheduler_configs = configured(method)
        load_states(self.optimizers, states)
        method._trainer = self  # type: ignore[assignment]

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return self.global_rank == 0

    @property
    def logger(self) -> Any:
        """The first logger, if any."""
        return self.loggers[0] if self.loggers else None

    @property
    def strategy(self) -> "Fit":
        """What ``LightningModule.optimizers`` and ``manual_backward`` ask for."""
        return self

    @property
    def precision_plugin(self) -> "Fit":
        """What ``LightningModule.clip_gradients`` asks for."""
        return self

    @property
    def _lightning_optimizers(self) -> list[Optimizer]:
        return self.optimizers

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Behind ``manual_backward``."""
        loss.backward(*args[1:], **kwargs)  # type: ignore[no-untyped-call]

    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str = "norm") -> None:
        """Behind ``LightningModule.clip_gradients``."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if value > 0:
            (clip_grad_value_ if algorithm == "value" else clip_grad_norm_)(parameters, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.trainer.{name} is not there while a client trains; it offers current_epoch, global_step, "
            "max_epochs, optimizers, lr_scheduler_configs, callbacks, loggers, global_rank and world_size. A method's "
            "hooks get everything else from self.visit and from their arguments"
        )

    def run(
        self, epochs: int, batches: Callable[[int], Iterable[Batch]], step: Callable[[Batch, int], Any] | None = None
    ) -> Iterator[None]:
        """Take all steps, and pause after each.

        Args:
            epochs: number of local epochs.
            batches: gives the batches of an epoch when its turn comes.
            step: takes the step on a batch and calls ``on_train_batch_end``; default: ``self.step``.
        """
        self.max_epochs, step = epochs, step or self.step
        started = False
        for epoch in range(epochs):
            self.current_epoch = epoch
            walk = batches(epoch)
            if not started:
                self.call("on_train_start")
                started = True
            self.call("on_train_epoch_start")
            for number, batch in enumerate(walk):
                if self.call("on_train_batch_start", batch, number) == -1:
                    break
                step(batch, number)
                self.global_step += 1
                yield
            self.advance_schedules("epoch")
            self.call("on_train_epoch_end")
        if not started:
            self.call("on_train_start")
        self.call("on_train_end")

    def step(self, batch: Batch, number: int) -> None:
        """One step on one batch, up to ``on_train_batch_end``."""
        outputs = self.compute(batch, number)
        self.advance_schedules("step")
        self.call("on_train_batch_end", outputs, batch, number)

    def compute(self, batch: Batch, number: int) -> Any:
        """``training_step`` and, with automatic optimisation, the step of the optimiser; what the hooks get of it."""
        method = self.lightning_module
        with method.autocast():
            made = method.training_step(batch, number)
        return self.optimize(made) if method.automatic_optimization else made

    def optimize(self, made: Any) -> Mapping[str, Any] | None:
        """Backward pass and optimiser step for what ``training_step`` returned; what it returned, detached.

        Raises:
            RunError: there are several optimisers, or ``training_step`` returned something else than a loss.
        """
        method = self.lightning_module
        if made is None:
            return None
        outputs = dict(made) if isinstance(made, Mapping) else {"loss": made}
        loss = outputs.get("loss")
        if not isinstance(loss, Tensor) or loss.ndim:
            raise RunError(
                f"training_step returned {describe(made)}; with automatic optimisation it returns a scalar loss, a "
                "dict with a scalar 'loss', or None"
            )
        if len(self.optimizers) != 1:
            raise RunError(
                f"{len(self.optimizers)} optimisers: automatic optimisation has one; set "
                "self.automatic_optimization = False and take the step in training_step"
            )
        (optimizer,) = self.optimizers
        self.call("on_before_zero_grad", optimizer)
        optimizer.zero_grad()
        self.call("on_before_backward", loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.call("on_after_backward")
        self.call("on_before_optimizer_step", optimizer)
        method.configure_gradient_clipping(optimizer)
        optimizer.step()
        outputs["loss"] = loss.detach()
        method.note_loss(outputs["loss"])
        return outputs

    def advance_schedules(self, interval: str) -> None:
        """Move the schedulers of an interval that ends; with manual optimisation the method does that itself."""
        count = 1 + (self.global_step if interval == "step" else self.current_epoch)
        if self.lightning_module.automatic_optimization:
            for schedule in self.lr_scheduler_configs:
                if schedule.interval == interval and count % schedule.frequency == 0:
                    schedule.scheduler.step()

    def call(self, hook: str, *args: Any) -> Any:
        """Call a hook of Lightning's on the callbacks and on the method; returns what the method's returns."""
        method = self.lightning_module
        for callback in self.callbacks:
            getattr(callback, hook)(self, method, *args)
        return getattr(method, hook)(*args)


def configured(method: FedMethod) -> tuple[list[Optimizer], list[Schedule]]:
    """The optimisers and schedulers that ``configure_optimizers`` describes, in any of Lightning's forms.

    Raises:
        RunError: it is none of them.
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
    if not isinstance(made, Mapping):
        return Schedule(made)
    return Schedule(made["scheduler"], made.get("interval", "epoch"), int(made.get("frequency", 1)))


def describe(value: object) -> str:
    """A value for an error message: its type, and the shape of a tensor."""
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def load_states(optimizers: Sequence[Optimizer], states: OptimizerStates) -> None:
    """Give optimisers copies of stored states; an optimiser whose stored states are empty starts anew."""
    for optimizer, stored in zip(optimizers, states, strict=bool(states)):
        for parameter, state in zip(parameters_of(optimizer), stored, strict=True):
            if state:
                optimizer.state[parameter] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}


def kept_states(method: FedMethod, optimizers: Sequence[Optimizer]) -> OptimizerStates:
    """What of the optimisers' states a client keeps until its next visit, by ``optimizer_scopes``."""
    scopes = list(method.optimizer_scopes())
    if wrong := [scope for scope in scopes if scope not in ("personal", "local")]:
        raise RunError(f"optimizer_scopes names {wrong[0]!r}; an optimiser's state is personal or local")
    scopes = scopes * len(optimizers) if len(scopes) == 1 else scopes
    if len(scopes) != len(optimizers):
        raise RunError(
            f"optimizer_scopes names {len(scopes)} scopes for {len(optimizers)} optimisers; give one for each"
        )
    if "personal" not in scopes:
        return []
    return [
        [dict(optimizer.state.get(p, {})) if scope == "personal" else {} for p in parameters_of(optimizer)]
        for scope, optimizer in zip(scopes, optimizers, strict=True)
    ]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimiser, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


__all__ = ["Fit", "OptimizerStates", "Schedule", "configured", "kept_states", "load_states", "parameters_of"]
