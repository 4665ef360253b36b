"""A visit as a fit: the steps of a client, or of the server, in the order of Lightning's ``Trainer.fit``."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from benchmark.federation import hooks
from benchmark.federation.optimizers import OptimizerStates, configured, load_states, round_rates
from benchmark.federation.trainer import VisitTrainer
from datamodules.common.errors import RunError
from datamodules.views.batches import Batch
from methods.base import FedMethod


class Fit:
    """One fit of the method as it stands.

    ``steps`` counts calls of ``training_step``; ``trainer.global_step`` counts optimiser steps, as Lightning does.

    Args:
        method: trained in place.
        states: state that the optimisers start from (``OptimizerStates``); empty: they start afresh.
        trainer: the method's ``self.trainer`` from now on; default: one of a single process.
    """

    def __init__(self, method: FedMethod, states: OptimizerStates, trainer: VisitTrainer | None = None) -> None:
        self.method, self.scaler = method, method._engine.loss_scaler
        self.trainer = trainer or VisitTrainer(method)
        method.trainer = self.trainer  # type: ignore[assignment]
        self.optimizers, self.schedules = configured(method)
        load_states(self.optimizers, states)
        if self.scaler is not None:
            self.scaler.begin(self.optimizers)
        self.trainer.set_optimizers(self.optimizers, self.schedules)
        self.batch_idx = self.steps = 0

    def run(
        self, epochs: int, batches: Callable[[int], Iterable[Batch]], step: Callable[[Batch, int], Any] | None = None
    ) -> Iterator[None]:
        """Take all steps; yields after each.

        Args:
            epochs: number of local epochs.
            batches: makes the batches of an epoch, by its number.
            step: takes one step and calls ``on_train_batch_end``; default: ``self.step``.
        """
        method, trainer, call = self.method, self.trainer, self.trainer.call
        trainer.max_epochs, step = epochs, step or self.step
        started = False
        for epoch in range(epochs):
            trainer.current_epoch = epoch
            walk = batches(epoch)
            if not started:
                call("on_train_start")
                started = True
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
        if not started:
            call("on_train_start")
        call("on_train_end")

    def step(self, batch: Batch, number: int) -> None:
        """One step on one batch, with ``on_train_batch_end``."""
        outputs = self.compute(batch, number)
        self.advance_schedules("step")
        self.trainer.call("on_train_batch_end", outputs, batch, number)

    def compute(self, batch: Batch, number: int) -> dict[str, Any]:
        """``training_step`` and, with automatic optimisation, the optimiser step; returns the outputs for hooks."""
        if self.method.automatic_optimization:
            outputs = self.automatic_step(batch, number)
        else:
            outputs = detached(hooks.step_outputs(self.training_step(batch, number), automatic=False))
        if self.scaler is not None:
            self.scaler.update()
        return outputs

    def training_step(self, batch: Batch, number: int) -> Any:
        """What the method's ``training_step`` returns, under the run's autocast."""
        with self.method.autocast():
            return self.method.training_step(batch, number)

    def automatic_step(self, batch: Batch, number: int) -> dict[str, Any]:
        """A step with automatic optimisation; returns what ``training_step`` returned, with the loss detached.

        Raises:
            RunError: there is not exactly one optimiser, or ``training_step`` did not return a loss.
        """
        method, trainer = self.method, self.trainer
        if len(self.optimizers) != 1:
            raise RunError(
                f"{len(self.optimizers)} optimisers, but automatic optimisation takes exactly one; set "
                "self.automatic_optimization = False and take the steps in training_step"
            )
        outputs: dict[str, Any] = {}

        def closure() -> Tensor | None:
            outputs.update(hooks.step_outputs(self.training_step(batch, number), automatic=True))
            loss: Tensor | None = outputs.get("loss")
            trainer.call("on_before_zero_grad", self.optimizers[0])
            method.optimizer_zero_grad(trainer.current_epoch, number, self.optimizers[0])
            if loss is not None:
                trainer.strategy.backward(loss)
            return loss

        method.optimizer_step(trainer.current_epoch, number, trainer.strategy._lightning_optimizers[0], closure)
        outputs = detached(outputs)
        if outputs:
            method._engine.log("loss", outputs["loss"])
        return outputs

    def advance_schedules(self, interval: str) -> None:
        """Step the schedulers at the end of an interval; with manual optimisation the method does so itself.

        As in Lightning, ``frequency`` counts the batches of the epoch, not those of the visit.
        """
        if self.method.automatic_optimization:
            count = 1 + (self.batch_idx if interval == "step" else self.trainer.current_epoch)
            for schedule in self.schedules:
                if schedule.interval == interval and count % schedule.frequency == 0:
                    self.method.lr_scheduler_step(schedule.scheduler, None)


def detached(outputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a step, with the loss detached from its graph."""
    loss = outputs.get("loss")
    return {**outputs, "loss": loss.detach()} if isinstance(loss, Tensor) else outputs
