"""A mean teacher at every client, shared by Fed-Consist, FedIRM and RSCFed."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import SiteData
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, LocalWork, Pass, Site, Stream
from methods.parts.tensors import ema_decay, ema_update, wide


class MeanTeacher(FedMethod):
    """Clients with labels learn from them; the others keep a local teacher that follows their student.

    In the first rounds (warm-up) only clients with labels train. A client's teacher starts as a copy of the global
    model received at its first visit after the warm-up.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``warmup_rounds`` of clients with labels alone | not mentioned | 7, momentum kept | 7 |
    | initial teacher | initial model | global model at the first selection | as released, after the warm-up |
    | ``ema_ramp``, ``ema_decay`` of the teacher | constant 0.999 | min(1 - 1/(t+1), 0.999) | as released |
    | ``lr``, ``lr_unlabelled`` | 0.03, 0.021 | 0.03, 0.021 | 0.03, 0.021 (ISIC 0.002, 0.001) |

    Args:
        labelled_epochs: passes over the data of a client with labels; default: ``local_epochs``, as at the others.
    """

    teacher_step: Tensor
    """Steps t that the teacher has followed."""

    scopes = {"teacher": "personal", "teacher_step": "personal"}
    views = {"labelled": {"x": "weak"}, "unlabelled": {"teacher": "weak", "student": "weak"}}

    def __init__(
        self,
        model: nn.Module,
        lr_unlabelled: float = 0.021,
        ema_decay: float = 0.999,
        ema_ramp: bool = True,
        warmup_rounds: int = 7,
        labelled_epochs: int | None = None,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.teacher = copy.deepcopy(model).requires_grad_(False).eval()
        self.register_buffer("teacher_step", torch.zeros(()))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Select all labelled clients during warm-up, then the round's participants.

        Raises:
            ConfigError: no client holds labels.
        """
        self.require_labels(roster)
        return [list(roster.labelled) if self.is_warmup(round) else roster.sample(round)]

    def learning_rate(self) -> float:
        """Return ``lr`` for clients with labels, ``lr_unlabelled`` for the others."""
        return float(self.hparams.lr if self.visit.labelled else self.hparams.lr_unlabelled)

    def local_work(self, client: Site) -> LocalWork:
        """Pass over the client's data as often as its kind of client does."""
        epochs = self.hparams.labelled_epochs if self.visit.labelled else None
        return [Pass(self.streams(client.data))] * int(self.hparams.local_epochs if epochs is None else epochs)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Return the streams, during warm-up only the labelled one."""
        streams = super().streams(data)
        if self.is_warmup(self.visit.round) and "labelled" in streams:
            streams["labelled"].cycle = False
            return {"labelled": streams["labelled"]}
        return streams

    def on_train_start(self) -> None:
        """Switch the teacher to evaluation; after the warm-up, one without any step becomes the received model."""
        super().on_train_start()
        self.teacher.eval()
        if not self.is_warmup(self.visit.round):
            received, is_new = self.model.state_dict(), self.teacher_step == 0
            for name, value in self.teacher.state_dict().items():
                value.copy_(torch.where(is_new, received[name], value))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss on labels plus that on unlabelled images."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + self.labelled_loss(batch["labelled"])
        if "unlabelled" in batch:
            loss = loss + self.unlabelled_loss(batch["unlabelled"])
        return loss

    def labelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy (RSCFed Eq. 1)."""
        return F.cross_entropy(self(samples["x"]), samples["y"])

    def unlabelled_loss(self, views: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted loss on the views ``student`` and ``teacher`` of unlabelled images."""
        raise NotImplementedError(f"{type(self).__name__} must define unlabelled_loss(views)")

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Move the teacher's parameters (not its buffers) towards the student (RSCFed Eq. 4)."""
        if "unlabelled" in batch:
            decay = ema_decay(self.teacher_step, self.hparams.ema_decay, self.hparams.ema_ramp)
            ema_update(self.teacher.parameters(), self.model.parameters(), decay)
            self.teacher_step += 1


class SharpenedTeacher(MeanTeacher):
    """The local training of RSCFed (Eqs. 1-4) and Fed-Consist: match the teacher's sharpened prediction.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``lambda_u`` weight of the consistency loss | none (1) | 0.02 | 0.02 |
    | squared error | squared norm per sample | over the configured batch size | as released |
    | ``temperature`` of sharpening | 0.5 | 0.5 | 0.5 |
    """

    def __init__(self, model: nn.Module, lambda_u: float = 0.02, temperature: float = 0.5, **base: Any) -> None:
        super().__init__(model, **base)

    def unlabelled_loss(self, views: Mapping[str, Tensor]) -> Tensor:
        """``lambda_u`` times the squared error between student and teacher, over the configured batch size."""
        h = self.hparams
        with torch.no_grad():
            teacher = wide(self.teacher(views["teacher"])).softmax(dim=1)
            target = sharpen(teacher, h.temperature)  # Eq. 2
        student = wide(self(views["student"])).softmax(dim=1)
        return h.lambda_u * ((student - target).square().sum() / h.batch_size)  # Eq. 3


def sharpen(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """``p^(1/T)`` normalised over the C classes, ``[B, C]`` (RSCFed Eq. 2, with T = 0.5)."""
    powered = probabilities.pow(1.0 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)
