"""Warnings of training that comes to nothing, and would end without a word in a record of the initial model."""

import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from benchmark.federation.reference import VisitResult
from methods.base import FedMethod


class Idleness:
    """Counts steps, and warns once if they change nothing.

    Args:
        method: the one that is trained.
        tells: whether this process prints the warning; each knows of its own visits.
    """

    def __init__(self, method: FedMethod, tells: bool) -> None:
        self.name, self.automatic, self.tells = type(method).__name__, method.automatic_optimization, tells
        self.parameters = [name for name, _ in method.named_parameters()]
        self.steps = self.optimizer_steps = 0
        self.learnt = False

    def count(self, results: Iterable[VisitResult]) -> None:
        """Count the steps of visits, or of the server, and note whether any had a loss."""
        for result in results:
            self.steps += result.steps
            self.optimizer_steps += result.optimizer_steps
            self.learnt |= "loss" in result.sums

    def check_uploads(self, number: int, results: Sequence[VisitResult]) -> None:
        """Clients took steps in a round, and none returned an upload."""
        if all(result.upload is None for result in results) and any(result.steps for result in results):
            self._tell(
                f"{self.name}.make_upload returned None in all {len(results)} visits of round {number}, in which "
                "clients took steps: the server learns nothing from them; return an Upload, as "
                "super().make_upload(client) does"
            )

    def check_round(self, number: int, before: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """No optimiser has stepped up to the end of a round, and the server's parameters are as they were."""
        if not self.steps or self.optimizer_steps:
            return
        if all(torch.equal(before[name], server[name]) for name in self.parameters if name in before):
            self._tell(
                f"{self.name}.training_step took no optimiser step in all {self.steps} steps of round {number}, and "
                "the model is as it was: with automatic_optimization = False it calls self.optimizers().step() itself"
            )

    def check_run(self) -> None:
        """No step of the whole run had a loss."""
        if self.steps and not self.learnt and self.automatic:
            self._tell(
                f"{self.name}.training_step returned None in all {self.steps} steps of the run, so nothing was "
                "trained: return the loss (or set self.automatic_optimization = False)"
            )

    def _tell(self, text: str) -> None:
        if self.tells:
            warnings.warn(text, stacklevel=4)
        self.tells = False
