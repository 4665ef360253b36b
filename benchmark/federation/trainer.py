"""What a method sees as ``self.trainer`` while a client trains: as much of Lightning's ``Trainer`` as a visit has."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from benchmark.federation.optimizers import has_gradients, parameters_of
from methods.base import FedMethod


class VisitPrecision:
    """Unscales and clips gradients, as ``LightningModule.clip_gradients`` asks its trainer to.

    Args:
        scaler: of losses, in ``16-mixed``; ``None`` in other precisions.
    """

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler

    def unscale_gradients(self, optimizer: Any) -> None:
        """In ``16-mixed``, divide gradients by the scale of the loss, once per ``training_step``."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning's wrapper
        if self.scaler is not None and has_gradients(optimizer):
            self.scaler.unscale_(optimizer)

    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str = "norm") -> None:
        """Clip by total norm or by ``value``; 0 does not clip."""
        if value > 0:
            self.unscale_gradients(optimizer)
            (clip_grad_value_ if algorithm == "value" else clip_grad_norm_)(parameters_of(optimizer), value)


class VisitStrategy:
    """Backward passes and optimiser steps, as ``manual_backward`` and the optimisers' ``step`` ask for them.

    It finds its trainer through the method: a reference of its own would keep a visit's optimisers in memory until the
    next garbage collection.

    Args:
        method: trained.
        scaler: of losses, in ``16-mixed``; ``None`` in other precisions.
    """

    def __init__(self, method: FedMethod, scaler: Any) -> None:
        self.lightning_module, self.scaler = method, scaler
        self._lightning_optimizers: list[LightningOptimizer] = []

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> None:
        """Behind ``manual_backward``, and in the automatic step."""
        method, trainer = self.lightning_module, self._trainer
        scaled = method.scaled(loss)
        trainer.call("on_before_backward", scaled)
        method.backward(scaled, *args, **kwargs)
        trainer.call("on_after_backward")

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Behind ``step`` of the optimisers that ``LightningModule.optimizers`` gives."""
        method, trainer = self.lightning_module, self._trainer
        made = closure()
        trainer.precision_plugin.unscale_gradients(optimizer)
        trainer.call("on_before_optimizer_step", optimizer)
        if method.automatic_optimization:
            method.configure_gradient_clipping(optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm)
        if self.scaler is None or not has_gradients(optimizer):
            optimizer.step(**kwargs)
        else:
            self.scaler.step(optimizer, **kwargs)
            method._engine.log("overflow", self.scaler.overflow(optimizer))
        trainer.global_step += 1
        return made

    @property
    def _trainer(self) -> "VisitTrainer":
        trainer: Any = self.lightning_module.trainer
        return trainer  # type: ignore[no-any-return]


class VisitTrainer:
    """The trainer of one visit, for the method and for Lightning callbacks.

    Args:
        method: trained.
        callbacks: Lightning callbacks.
        loggers: what ``self.logger`` and ``self.loggers`` give.
        rank: rank of this process.
        ranks: number of processes.
        max_epochs: number of local epochs.
    """

    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str | None = None
    accumulate_grad_batches = 1
    training, sanity_checking, validating, testing, predicting = True, False, False, False, False

    def __init__(
        self,
        method: FedMethod,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Any] = (),
        rank: int = 0,
        ranks: int = 1,
        max_epochs: int = 0,
    ) -> None:
        self.lightning_module = method
        self.callbacks, self.loggers = list(callbacks), list(loggers)
        self.global_rank, self.world_size = rank, ranks
        self.current_epoch = self.global_step = 0
        self.max_epochs = max_epochs
        self.strategy = VisitStrategy(method, method._engine.loss_scaler)
        self.precision_plugin = VisitPrecision(method._engine.loss_scaler)

    def set_optimizers(self, optimizers: Sequence[Optimizer], schedules: Sequence[LRSchedulerConfig]) -> None:
        """Offer the visit's optimisers, and their wrapped forms through ``LightningModule.optimizers``."""
        self.optimizers, self.lr_scheduler_configs = list(optimizers), list(schedules)
        wrapped = LightningOptimizer._to_lightning_optimizer
        self.strategy._lightning_optimizers = [wrapped(one, self.strategy) for one in optimizers]  # type: ignore[arg-type]

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return self.global_rank == 0

    @property
    def logger(self) -> Any:
        """The first logger, if any."""
        return self.loggers[0] if self.loggers else None

    def call(self, hook: str, *args: Any) -> Any:
        """Call one of Lightning's hooks on the callbacks, then on the method; returns what the method's returns."""
        method = self.lightning_module
        for callback in self.callbacks:
            getattr(callback, hook)(self, method, *args)
        return getattr(method, hook)(*args)
