"""FedCon as in its public code, and with the student that this code keeps but does not use."""

import copy
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from datamodules.base import SiteData
from methods.base import Batch, LocalWork, Site, StepNumber, Stream
from methods.fedcon import FedCon
from methods.parts.tensors import ema_update

EPOCH = 1000
"""Batches that count as one round in the schedule of the mean student (released code)."""


class ReleasedFedCon(FedCon):
    """FedCon with the clients' optimiser of its public code; the (FL)2 paper reports SGD with a single rate (Table 4).

    Clients use LARS (You et al., 2017, Algorithm 1), which is SGD along ``scaled`` gradients, with a warm-up over ten
    epochs that restarts in every round. Tensors with one axis (biases and the parameters of normalisation layers) keep
    their gradients, without weight decay (SimCLR, BYOL). The code has no momentum; here it adds up scaled gradients,
    and the rate multiplies their sum. Incomplete batches are dropped, also at the server.

    The code's values are in the row ``fedcon_repo`` of the suite ``fl2``. With them a client's backbone hardly moves:
    its rate is 0.0117 in the first step, 0 in the second, and reaches a tenth of 0.0117 at the end of the visit, each
    multiplied by a thousandth of a weight's norm.
    """

    revision = 2
    warmup_steps = 0

    def client_optimizer(self) -> Any:
        """Return SGD with a warm-up of its rate; weight decay is part of the scaled gradients."""
        sgd = torch.optim.SGD(self.learners(), self.learning_rate(), self.hparams.momentum, fused=True)
        warmup = LambdaLR(sgd, lambda step: warmup_factor(step, self.warmup_steps))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Clip as in FedCon, then scale a client's gradients."""
        super().configure_gradient_clipping(optimizer, *args, **kwargs)
        if not self.visit.at_server:
            for p in self.learners():
                if p.grad is not None and p.ndim > 1:
                    p.grad.copy_(scaled(p.detach(), p.grad, self.hparams.weight_decay))

    def local_work(self, client: Site) -> LocalWork:
        """Train as in FedCon; the warm-up is ten epochs of full batches."""
        self.warmup_steps = 10 * (len(client.data.unlabelled) // self.hparams.batch_size)
        return super().local_work(client)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Keep full batches only."""
        streams = super().streams(data)
        for stream in streams.values():
            stream.min_batch = stream.batch_size
        return streams

    def server_stream(self, data: SiteData) -> Stream:
        """Keep full batches only."""
        stream = super().server_stream(data)
        stream.min_batch = stream.batch_size
        return stream


class EMAStudent(FedCon):
    """FedCon whose student is an average of the teacher over the server's steps, as an unused copy suggests.

    Its decay rises from 0.9996 to 1 over 20 rounds, and falls again over the next 20. The public code keeps this
    average, but then uses the teacher itself.
    """

    scopes = {**FedCon.scopes, "student": "server"}

    decay = StepNumber()  # of the student

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.student = copy.deepcopy(self.model).requires_grad_(False)

    def student_network(self) -> nn.Module:
        """Return s: the average."""
        return self.student

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the student's decay for this step."""
        self.decay = student_decay(EPOCH * self.server_round() + self.trainer.global_step)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Update the averages: f' at a client, s at the server."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        if "labelled" in batch:
            ema_update(self.student.parameters(), self.model.parameters(), self.decay)


def student_decay(step: int) -> float:
    """``1 - 4e-4 (cos(pi k / 20000) + 1) / 2`` after k steps (released code)."""
    return 1.0 - 4e-4 * (cos(pi * step / 20000) + 1.0) / 2.0


def warmup_factor(step: int, length: int) -> float:
    """Factor on the rate in the 0-based step of a visit (released code).

    1 in step 0; from 0 to 1 in equal parts, both included, over the next ``length`` steps: ``(step - 1) / (length -
    1)``; 1 afterwards.
    """
    return 1.0 if step == 0 else min((step - 1) / max(length - 1, 1), 1.0)


def scaled(weight: Tensor, gradient: Tensor, weight_decay: float, trust: float = 1e-3) -> Tensor:
    """``trust ||w|| / ||d|| d`` with ``d = g + weight_decay w``, shaped as ``weight``; d itself if w or d is 0.

    You et al. divide by ``||g|| + weight_decay ||w||``, released code for contrastive learning by the norm of d.
    """
    decayed = gradient + weight_decay * weight
    size, slope = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(decayed)
    return torch.where((size > 0) & (slope > 0), trust * size / slope, 1.0) * decayed
