"""A visit as a fit: the steps of a client, or of the server, in the order of Lightning's ``Trainer.fit``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

import torch
from lightning import Fabric
from lightning.pytorch import Callback
from lightning.pytorch.core import optimizer as pl_optim
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Optimizer

from benchmark.federation import hooks
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common import streams
from datamodules.common.errors import RunError
from datamodules.views.batches import Batch
from methods.base import FedMethod, Scope, Visit

OptimizerStates = list[list[dict[str, Any]]]
"""State of every parameter, by optimiser, in the order of ``configure_optimizers``."""


@dataclass(frozen=True)
class RunContext:
    """What all visits of a run have in common.

    Args:
        data: the data module, set up, on the method's device.
        seed: the run's seed, from which all random streams are derived.
        rounds: of the run, for schedules.
        fabric: launched; gives precision and loggers.
        skips: whether visits that end with numbers that are not finite are left out; otherwise they end the run.
        callbacks: Lightning callbacks, called in every fit.
    """

    data: FSSLDataModule
    seed: int
    rounds: int
    fabric: Fabric
    skips: bool = False
    callbacks: Sequence[Callback] = ()

    def visit(self, round: int, client: int, site: SiteData, **more: Any) -> Visit:
        """A visit of a client, or of the server, to the site with these data; ``more``: see ``Visit``."""
        return Visit(round, client, labelled=len(site.labelled) > 0, size=site.size, rounds=self.rounds, **more)

    @contextmanager
    def seeded(self, purpose: str, *where: int) -> Iterator[None]:
        """Seed torch's global generators, those of the CPU and of the device, and restore them afterwards.

        ``torch.manual_seed`` is slow: for kinds of devices that are not there it records the stack.
        """
        device, seed = self.data.device, streams.derive_seed(self.seed, purpose, *where)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed)
            if device.type != "cpu":
                torch.get_device_module(device).manual_seed(seed)
            yield


class Fit:
    """One fit of the method as it stands, which meets it as ``self.trainer``: as much of Lightning's as a visit has.

    It is its own strategy and precision plugin. ``steps`` counts batches trained on; ``global_step`` counts optimiser
    steps, as Lightning does.

    Args:
        method: trained in place.
        states: state that the optimisers start from; empty: they start afresh.
        max_epochs: number of local epochs.
        context: gives callbacks, loggers and ranks; ``None``: there are none.
    """

    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str | None = None
    accumulate_grad_batches = 1
    training, sanity_checking, validating, testing, predicting = True, False, False, False, False
    strategy = precision_plugin = property(lambda self: self)  # for ``manual_backward``, ``optimizers``, clipping

    def __init__(
        self, method: FedMethod, states: OptimizerStates, max_epochs: int = 0, context: RunContext | None = None
    ) -> None:
        self.method = self.lightning_module = method
        self.callbacks = list(context.callbacks) if context else []
        self.loggers = list(context.fabric.loggers) if context else []
        self.logger = self.loggers[0] if self.loggers else None
        self.global_rank = context.fabric.global_rank if context else 0
        self.world_size = context.fabric.world_size if context else 1
        self.is_global_zero = self.global_rank == 0
        self.max_epochs = max_epochs
        self.current_epoch = self.global_step = self.batch_idx = self.steps = 0
        method.trainer = self  # type: ignore[assignment]
        made = method.configure_optimizers()  # in any of Lightning's forms; it refuses others
        self.optimizers, schedulers, monitor = ([], [], None) if made is None else pl_optim._configure_optimizers(made)
        self.lr_scheduler_configs = pl_optim._configure_schedulers_automatic_opt(schedulers, monitor)
        load_states(method, self.optimizers, states)
        wrap = pl_optim.LightningOptimizer._to_lightning_optimizer  # it holds this fit by a weak reference
        self._lightning_optimizers = [wrap(optimizer, self) for optimizer in self.optimizers]  # type: ignore[arg-type]

    def run(
        self, batches: Callable[[int], Iterable[Batch]], step: Callable[[Batch, int], None] | None = None
    ) -> Iterator[None]:
        """Take all steps; yields after each.

        Args:
            batches: makes the batches of an epoch, by its number.
            step: takes one step and calls ``on_train_batch_end``; default: ``self.step``.
        """
        method, call, step = self.method, self.call, step or self.step
        for epoch in range(self.max_epochs):
            self.current_epoch = epoch
            walk = batches(epoch)
            if epoch == 0:
                call("on_train_start")
            call("on_train_epoch_start")
            for number, loaded in enumerate(walk):
                self.batch_idx = number
                batch = method.on_after_batch_transfer(method.on_before_batch_transfer(loaded, 0), 0)
                if call("on_train_batch_start", batch, number) == -1:
                    break
                round_rates(self.optimizers)
                step(batch, number)
                self.steps += 1
                yield
            self.advance_schedules("epoch")
            call("on_train_epoch_end")
        if self.max_epochs == 0:
            call("on_train_start")
        call("on_train_end")

    def call(self, hook: str, *args: Any) -> Any:
        """Call one of Lightning's hooks on the callbacks, then on the method; returns what the method's returns."""
        for callback in self.callbacks:
            getattr(callback, hook)(self, self.method, *args)
        return getattr(self.method, hook)(*args)

    def step(self, batch: Batch, number: int) -> None:
        """One step on one batch, with ``on_train_batch_end``."""
        outputs = self.compute(batch, number)
        self.advance_schedules("step")
        self.call("on_train_batch_end", outputs, batch, number)

    def compute(self, batch: Batch, number: int) -> dict[str, Any]:
        """``training_step`` and, with automatic optimisation, the optimiser step.

        Returns:
            what ``training_step`` returned, with the loss detached.

        Raises:
            RunError: with automatic optimisation there is not exactly one optimiser, or ``hooks.step_outputs`` refuses
                what was returned.
        """
        method, outputs = self.method, dict[str, Any]()

        def closure() -> Tensor | None:
            with method.autocast():
                returned = method.training_step(batch, number)
            outputs.update(hooks.step_outputs(returned, method.automatic_optimization))
            loss: Tensor | None = outputs.get("loss")
            if method.automatic_optimization:
                self.call("on_before_zero_grad", self.optimizers[0])
                method.optimizer_zero_grad(self.current_epoch, number, self.optimizers[0])
                if loss is not None:
                    self.backward(loss)
            return loss

        if not method.automatic_optimization:
            closure()
        elif len(self.optimizers) == 1:
            method.optimizer_step(self.current_epoch, number, self._lightning_optimizers[0], closure)
        else:
            raise RunError(
                f"{len(self.optimizers)} optimisers, but automatic optimisation takes exactly one; set "
                "self.automatic_optimization = False and take the steps in training_step"
            )
        if isinstance(loss := outputs.get("loss"), Tensor):
            outputs["loss"] = loss.detach()
            if method.automatic_optimization and (tally := method._engine.tally) is not None:
                tally.add("loss", loss, 1.0)
        return outputs

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> None:
        """Behind ``manual_backward``, and in the automatic step."""
        self.call("on_before_backward", loss)
        self.method.backward(loss, *args, **kwargs)
        self.call("on_after_backward")

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Behind ``step`` of the optimisers that ``LightningModule.optimizers`` gives."""
        method = self.method
        loss = closure()
        self.call("on_before_optimizer_step", optimizer)
        if method.automatic_optimization:
            method.configure_gradient_clipping(optimizer, self.gradient_clip_val, self.gradient_clip_algorithm)
        start_late_momenta(optimizer)
        optimizer.step(**kwargs)
        self.global_step += 1
        return loss

    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str = "norm") -> None:
        """Clip by total norm or by ``value``; 0 does not clip."""
        if value > 0:
            (clip_grad_value_ if algorithm == "value" else clip_grad_norm_)(parameters_of(optimizer), value)

    def advance_schedules(self, interval: str) -> None:
        """Step the schedulers at the end of an interval; with manual optimisation the method does so itself.

        As in Lightning, ``frequency`` counts the batches of the epoch, not those of the visit.
        """
        if self.method.automatic_optimization:
            count = 1 + (self.batch_idx if interval == "step" else self.current_epoch)
            for schedule in self.lr_scheduler_configs:
                if schedule.interval == interval and count % schedule.frequency == 0:
                    self.method.lr_scheduler_step(schedule.scheduler, None)


def load_states(method: FedMethod, optimizers: Sequence[Optimizer], states: OptimizerStates) -> None:
    """Give optimisers copies of stored states, on their device; without one, or if it is now local, they start afresh.

    Raises:
        RunError: the states are those of other optimisers; or see ``scopes_of``.
    """
    scopes = scopes_of(method, optimizers) if states else []
    if scopes and [len(stored) for stored in states] != [len(parameters_of(optimizer)) for optimizer in optimizers]:
        raise RunError(
            "configure_optimizers returned other optimisers than at the last visit, whose state was kept; return the "
            "same ones, or let optimizer_scopes say 'local'"
        )
    for scope, optimizer, stored in zip(scopes, optimizers, states, strict=False):
        by_hand = not any(optimizer.defaults.get(name) for name in ("fused", "capturable"))
        for parameter, state in zip(parameters_of(optimizer), stored, strict=True):
            if state and scope != "local":
                optimizer.state[parameter] = copied(state, parameter.device, "cpu" if by_hand else parameter.device)


def kept_states(method: FedMethod, optimizers: Sequence[Optimizer]) -> OptimizerStates:
    """Copies of the state that ``optimizer_scopes`` keeps for the client's next visit or, if shared, for anyone's.

    Raises:
        RunError: see ``scopes_of``.
    """
    return [
        [{} if scope == "local" else copied(optimizer.state.get(p, {})) for p in parameters_of(optimizer)]
        for scope, optimizer in zip(scopes_of(method, optimizers), optimizers, strict=False)
    ]


def scopes_of(method: FedMethod, optimizers: Sequence[Optimizer]) -> Sequence[Scope]:
    """The present visit's ``optimizer_scopes``, one for each optimiser; empty if all are local.

    Raises:
        RunError: they cannot be combined, or there is neither one nor one for each optimiser.
    """
    scopes = list(method.optimizer_scopes())
    kinds = set(scopes)
    if not (kinds <= {"personal", "local"} or kinds <= {"shared", "local"}):
        raise RunError(
            f"optimizer_scopes names {', '.join(map(repr, scopes))}; combine either personal and local, or shared and "
            "local"
        )
    if kinds == {"local"}:
        return []
    scopes = scopes * len(optimizers) if len(scopes) == 1 else scopes
    if len(scopes) != len(optimizers):
        raise RunError(f"optimizer_scopes: {len(scopes)} scopes for {len(optimizers)} optimisers; give one for each")
    return scopes


def copied(state: Mapping[str, Any], device: Any = None, step_device: Any = None) -> dict[str, Any]:
    """A copy of a parameter's state, with tensors of its own on ``device``, its number of steps on ``step_device``."""
    copy = dict(state)
    for name, value in state.items():
        if isinstance(value, Tensor):
            copy[name] = value.to(device=step_device if name == "step" else device, copy=True, non_blocking=True)
    return copy


def start_late_momenta(optimizer: Optimizer) -> None:
    """Give a momentum of 0 to parameters whose first gradient comes later than that of others.

    PyTorch's fused SGD would fail; its other forms start with that gradient, which is the same without dampening.
    """
    groups = optimizer.param_groups if isinstance(optimizer, SGD) else []
    if len(optimizer.state) == sum(len(group["params"]) for group in groups):  # all have begun, as in nearly every step
        return
    for group in groups:
        if group["fused"] and group["momentum"] and not group["dampening"]:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            late = [parameter for parameter in trained if not optimizer.state.get(parameter)]
            if len(late) < len(trained):
                for parameter in late:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


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
