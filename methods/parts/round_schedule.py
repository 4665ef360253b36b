"""A learning-rate schedule over rounds, with the matching optimiser at clients (SemiFL, (FL)2, FedDB)."""

from math import cos, pi
from typing import Any, Literal

from torch import nn

from methods.base import FedMethod


class RoundSchedule(FedMethod):
    """One rate per round, the same at the server and at the clients.

    Args:
        model: the network.
        lr_schedule: ``cosine``: ``lr (1 + cos(pi r / T)) / 2`` in 0-based round r of T; or ``constant``.
        nesterov: Nesterov momentum of the clients.
        clip_norm: total gradient norm allowed before weight decay is added; ``None`` never clips.
        local_epochs: passes over a client's data per visit.
    """

    def __init__(
        self,
        model: nn.Module,
        lr_schedule: Literal["cosine", "constant"] = "cosine",
        nesterov: bool = True,
        clip_norm: float | None = 1.0,
        local_epochs: int = 5,
        **base: Any,
    ) -> None:
        super().__init__(model, nesterov=nesterov, clip_norm=clip_norm, local_epochs=local_epochs, **base)

    def learning_rate(self) -> float:
        """Return the rate of the visit's round."""
        return self.scheduled(float(self.hparams.lr))

    def scheduled(self, rate: float) -> float:
        """Apply ``lr_schedule`` to a rate in the visit's round."""
        if self.hparams.lr_schedule == "constant":
            return rate
        return 0.5 * rate * (1.0 + cos(pi * self.visit.round / self.visit.rounds))
