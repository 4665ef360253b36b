"""A server optimiser: SGD with momentum, with the clients' average displacement as the gradient."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from methods.base import Upload
from methods.parts.aggregation import weighted_mean
from methods.parts.round_schedule import RoundSchedule

State = Mapping[str, Tensor]


class ServerMomentum(RoundSchedule):
    """Aggregation with server momentum, and a learning-rate schedule over rounds (SemiFL, (FL)2, FedDB).

    Args:
        model: the network.
        server_momentum: momentum of ``momentum_step``; it applies to parameters, buffers are averaged. 0: plain
            average.
    """

    scopes = {"velocity": "server"}
    uploads_needed = "mean"
    retired = {"aggregation": "uniform"}

    def __init__(
        self,
        model: nn.Module,
        server_momentum: float = 0.5,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.velocity = resting_copy(model)

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Weigh all clients that return an upload alike."""
        return [1.0] * len(uploads)

    @torch.no_grad()
    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average, then apply the server's momentum; tensors that no client returned stay unchanged."""
        mean = weighted_mean([upload.tensors for upload in uploads], self.weights(uploads))
        if self.hparams.server_momentum:
            sent = {name: p for name, p in self.model.named_parameters() if f"model.{name}" in mean}
            average = {name: mean[f"model.{name}"] for name in sent}
            velocity = dict(self.velocity.named_parameters())
            moved, pace = momentum_step(sent, average, velocity, self.hparams.server_momentum)
            mean |= {f"model.{name}": value for name, value in moved.items()}
            mean |= {f"velocity.{name}": value for name, value in pace.items()}
        self.load_tensors(mean)


def momentum_step(
    sent: State, mean: State, velocity: State, momentum: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """``M <- momentum M + (W - mean)``, ``W <- W - M``: SGD with rate 1 on the clients' average displacement.

    Args:
        sent: the global model W that the clients started from, by name.
        mean: the weighted mean of the returned models.
        velocity: M; zeros before the first aggregation.
        momentum: 0 gives the mean itself, up to rounding.

    Returns:
        The new W and the new M.
    """
    pace = {name: momentum * velocity[name] + (sent[name] - mean[name]) for name in sent}
    return {name: sent[name] - pace[name] for name in sent}, pace


def resting_copy(model: nn.Module) -> nn.Module:
    """Return a frozen copy of the network with all parameters 0: the velocity before the first step."""
    copied = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for value in copied.parameters():
            value.zero_()
    return copied
