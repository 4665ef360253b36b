"""A visit as a fit: the steps of a client, or of the server, in the order of Lightning's ``Trainer.fit``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

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

    ``global_step`` counts the steps of optimisers, as Lightning does, and ``steps`` the calls of ``training_step``.

    Args:
        method: trained in place.
        states: state that the optimisers take up (``OptimizerStates``); empty: they start anew.
        callbacks: Lightning callbacks.
        loggers: what ``self.logger`` and ``self.loggers`` give.
        rank: rank of this process.
        ranks: number of processes.
        epochs: number of local epochs, ``max_epochs``.
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
        epochs: int = 0,
    ) -> None:
        self.lightning_module = method
        method._trainer = self  # type: ignore[assignment]
        self.callbacks, self.loggers = list(callbacks), list(loggers)
        self.global_rank, self.world_size = rank, ranks
        self.current_epoch = self.batch_idx = self.global_step = self.steps = 0
        self.max_epochs = epochs
        self.optimizers, self.lr_scheduler_configs = configured(method)
        load_states(self.optimizers, states)
        if (scaler := method.loss_scaler) is not None:
            scaler.begin(self.optimizers)
        self.scaler = scaler
        wrapped = LightningOptimizer._to_lightning_optimizer
        self._lightning_optimizers = [wrapped(one, self) for one in self.optimizers]  # type: ignore[arg-type]

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

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> None:
        """Behind ``manual_backward``, and in the automatic step."""
        scaled = self.lightning_module.scaled(loss)
        self.call("on_before_backward", scaled)
        self.lightning_module.backward(scaled, *args, **kwargs)
        self.call("on_after_backward")

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Behind ``step`` of the optimisers that ``LightningModule.optimizers`` gives."""
        made = closure()
        self.unscale_gradients(optimizer)
        self.call("on_before_optimizer_step", optimizer)
        if self.lightning_module.automatic_optimization:
            self.lightning_module.configure_gradient_clipping(
                optimizer, self.gradient_clip_val, self.gradient_clip_algorithm
            )
        if self.scaler is None or not has_gradients(optimizer):
            optimizer.step(**kwargs)
        else:
            self.scaler.step(optimizer, **kwargs)
            self.lightning_module.note_overflow(self.scaler.overflow(optimizer))
        self.global_step += 1
        return made

    def unscale_gradients(self, optimizer: Any) -> None:
        """In ``16-mixed``, divide gradients by the scale of the loss, once in a ``training_step``."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning's wrapper
        if self.scaler is not None and has_gradients(optimizer):
            self.scaler.unscale_(optimizer)

    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str = "norm") -> None:
        """Behind ``LightningModule.clip_gradients``."""
        parameters = parameters_of(optimizer)
        if value > 0:
            self.unscale_gradients(optimizer)
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
            for number, loaded in enumerate(walk):
                self.batch_idx = number
                method = self.lightning_module
                batch = method.on_after_batch_transfer(method.on_before_batch_transfer(loaded, 0), 0)
                if self.call("on_train_batch_start", batch, number) == -1:
                    break
                round_rates(self.optimizers)
                step(batch, number)
                self.steps += 1
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

    def compute(self, batch: Batch, number: int) -> dict[str, Any]:
        """``training_step`` and, with automatic optimisation, the step of the optimiser; what the hooks get of it."""
        if self.lightning_module.automatic_optimization:
            outputs = self.automatic_step(batch, number)
        else:
            outputs = detached(read_manual_outputs(self.training_step(batch, number)))
        if self.scaler is not None:
            self.scaler.update()
        return outputs

    def training_step(self, batch: Batch, number: int) -> Any:
        """What the method's ``training_step`` returns, under the run's autocast."""
        with self.lightning_module.autocast():
            return self.lightning_module.training_step(batch, number)

    def automatic_step(self, batch: Batch, number: int) -> dict[str, Any]:
        """A step with automatic optimisation; what ``training_step`` returned, its loss detached.

        Raises:
            RunError: there are several optimisers, or ``training_step`` returned something else than a loss.
        """
        method, epoch = self.lightning_module, self.current_epoch
        if len(self.optimizers) != 1:
            raise RunError(
                f"{len(self.optimizers)} optimisers: automatic optimisation has one; set "
                "self.automatic_optimization = False and take the step in training_step"
            )
        outputs: dict[str, Any] = {}

        def closure() -> Tensor | None:
            outputs.update(read_outputs(self.training_step(batch, number)))
            loss: Tensor | None = outputs.get("loss")
            self.call("on_before_zero_grad", self.optimizers[0])
            method.optimizer_zero_grad(epoch, number, self.optimizers[0])
            if loss is not None:
                self.backward(_differentiable(loss))
            return loss

        method.optimizer_step(epoch, number, self._lightning_optimizers[0], closure)
        outputs = detached(outputs)
        if outputs:
            method.note_loss(outputs["loss"])
        return outputs

    def advance_schedules(self, interval: str) -> None:
        """Move the schedulers of an interval that ends; with manual optimisation the method does that itself.

        As in Lightning, ``frequency`` counts the batches of the epoch, not those of the visit.
        """
        method, count = self.lightning_module, 1 + (self.batch_idx if interval == "step" else self.current_epoch)
        if method.automatic_optimization:
            for schedule in self.lr_scheduler_configs:
                if schedule.interval == interval and count % schedule.frequency == 0:
                    method.lr_scheduler_step(schedule.scheduler, None)

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


def read_outputs(made: Any) -> dict[str, Any]:
    """What ``training_step`` returned, as a dict with a scalar ``loss``; empty for ``None``, which teaches nothing.

    Raises:
        RunError: it is something else.
    """
    if made is None:
        return {}
    outputs = dict(made) if isinstance(made, Mapping) else {"loss": made}
    loss = outputs.get("loss")
    if not isinstance(loss, Tensor) or loss.ndim:
        raise RunError(
            f"training_step returned {describe(made)}; with automatic optimisation it returns a scalar loss, a "
            "dict with a scalar 'loss', or None"
        )
    return outputs


def _differentiable(loss: Tensor) -> Tensor:
    """A loss with a graph.

    Raises:
        RunError: it has none, and PyTorch would name no line of the method.
    """
    if not loss.requires_grad:
        raise RunError(
            "training_step returned a loss that does not require grad: is it detached, or computed under "
            "torch.no_grad()? Return None for a step that has nothing to teach"
        )
    return loss


def read_manual_outputs(made: Any) -> dict[str, Any]:
    """What ``training_step`` returned with manual optimisation, as a dict: a tensor is the ``loss``.

    Raises:
        RunError: it is something else than a tensor, a dict or ``None``.
    """
    if not (made is None or isinstance(made, Tensor | Mapping)):
        raise RunError(
            f"training_step returned {describe(made)}; with manual optimisation it returns a tensor, a dict, or None"
        )
    return {} if made is None else dict(made) if isinstance(made, Mapping) else {"loss": made}


def detached(outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a step whose loss has no graph."""
    loss = outputs.get("loss")
    return {**outputs, "loss": loss.detach()} if isinstance(loss, Tensor) else outputs


def describe(value: object) -> str:
    """A value for an error message: its type, and the shape of a tensor."""
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def load_states(optimizers: Sequence[Optimizer], states: OptimizerStates) -> None:
    """Give optimisers copies of stored states; an optimiser whose stored states are empty starts anew.

    Raises:
        RunError: the states are those of other optimisers.
    """
    stored_sizes = [len(own) for own in states]
    if states and stored_sizes != [len(parameters_of(optimizer)) for optimizer in optimizers]:
        raise RunError(
            "configure_optimizers makes other optimisers than at the last visit, whose state is kept: return the same "
            "ones, or let optimizer_scopes say 'local'"
        )
    for optimizer, stored in zip(optimizers, states, strict=bool(states)):
        for parameter, state in zip(parameters_of(optimizer), stored, strict=True):
            if state:
                optimizer.state[parameter] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}


def kept_states(method: FedMethod, optimizers: Sequence[Optimizer]) -> OptimizerStates:
    """What of the optimisers' states is kept for the client's next visit, or for anyone's, by ``optimizer_scopes``."""
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
    """On a GPU, round rates to single precision: a recorded step holds them so, and all engines take the same steps."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], float) and reads_single(group["params"]):
                group["lr"] = c_float(group["lr"]).value


def reads_single(parameters: Sequence[Tensor]) -> bool:
    """Whether fused kernels read their rate as a float32 where these parameters are."""
    return bool(parameters) and parameters[0].device.type != "cpu"


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimiser, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether a step of the optimiser would move anything."""
    return any(parameter.grad is not None for parameter in parameters_of(optimizer))


__all__ = [
    "Fit",
    "OptimizerStates",
    "Schedule",
    "configured",
    "kept_states",
    "load_states",
    "parameters_of",
    "round_rates",
]
