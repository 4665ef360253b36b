"""Fed-Consist: mean-teacher consistency on unlabelled clients, as the RSCFed paper compares against."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import SiteData
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, Stream, Upload
from methods.parts.aggregation import read_mode, share_weights, weighted_mean
from methods.parts.labelling import sharpen
from methods.parts.losses import squared_error
from methods.parts.rosters import require_labels
from methods.parts.teacher import ema_decay, ema_update
from methods.parts.tensors import wide


class FedConsist(FedMethod):
    """Consistency with an EMA teacher (Yang et al., MedIA 2021, as re-implemented for RSCFed, CVPR 2022, Sec. 4).

    Labelled clients minimise cross-entropy. An unlabelled client keeps a teacher, born as a copy of the global
    model at its first participation; the student matches the teacher's sharpened prediction on another view.
    The teacher then follows the student; it never leaves the client. Rounds before ``warmup_rounds`` train
    labelled clients only.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``lambda_u`` weight of the consistency loss | none (1) | 0.02 | 0.02 |
    | ``mse_reduction`` | squared norm per sample | over the configured batch size | ``fixed_batch`` |
    | ``temperature`` of sharpening | 0.5 | 0.5 | 0.5 |
    | ``warmup_rounds`` | not mentioned | 7, momentum kept | 7 |
    | ``teacher_init`` | initial model | global model at the first selection | ``current`` |
    | ``ema_ramp``, ``ema_decay`` | constant 0.999 | min(1 - 1/(t+1), 0.999) | as the code |
    | ``lr``, ``lr_unlabelled`` | 0.03, 0.021 | 0.03, 0.021 | 0.03, 0.021 (ISIC 0.002, 0.001) |
    | ``labelled_weight_mode`` | labelled clients share 50 % | not released | ``share:0.5`` |
    | ``unlabelled_split`` of the other 50 % | not given | not released | by ``size`` |
    """

    teacher_step: Tensor

    scopes = {"teacher": "personal", "teacher_step": "personal"}
    views = {"labelled": {"x": "weak"}, "unlabelled": {"teacher": "weak", "student": "weak"}}

    def __init__(
        self,
        model: nn.Module,
        lr_unlabelled: float = 0.021,
        lambda_u: float = 0.02,
        temperature: float = 0.5,
        ema_decay: float = 0.999,
        ema_ramp: bool = True,
        mse_reduction: Literal["fixed_batch", "actual_batch"] = "fixed_batch",
        teacher_init: Literal["current", "initial"] = "current",
        warmup_rounds: int = 7,
        labelled_weight_mode: str = "share:0.5",
        unlabelled_split: Literal["size", "equal"] = "size",
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require("from 0", lambda_u=lambda_u >= 0)
        self.require("above 0", temperature=temperature > 0)
        self.require("from 0 to 1", ema_decay=0 <= ema_decay <= 1)
        read_mode(labelled_weight_mode)
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("teacher_step", torch.zeros(()))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Labelled clients during warm-up, then everybody.

        Raises:
            ConfigError: no client holds labels.
        """
        require_labels(roster)
        return [list(roster.labelled) if self.is_warmup(round) else roster.sample(round)]

    def learning_rate(self) -> float:
        """Clients with labels use ``lr``, the others ``lr_unlabelled``."""
        return float(self.hparams.lr if self.visit.labelled else self.hparams.lr_unlabelled)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Labels only during warm-up."""
        streams = super().streams(data)
        if self.is_warmup(self.visit.round) and "labelled" in streams:
            labels = streams["labelled"]
            labels.cycle = False
            return {"labelled": labels}
        return streams

    @torch.no_grad()
    def on_train_start(self) -> None:
        """The teacher is born: after the warm-up, one that has made no step yet becomes the received model."""
        super().on_train_start()
        if self.is_warmup(self.visit.round) or self.hparams.teacher_init == "initial":
            return
        unborn = self.teacher_step == 0
        teacher, received = self.teacher.state_dict(), self.model.state_dict()
        for name, value in teacher.items():
            value.copy_(torch.where(unborn, received[name], value))

    def train(self, mode: bool = True) -> "FedConsist":
        """The teacher is always in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of what is labelled (Eq. 1) plus ``lambda_u`` times the consistency of what is not (Eq. 3)."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
        if "unlabelled" in batch:
            loss = loss + self.hparams.lambda_u * self.consistency(batch["unlabelled"])
        return loss

    def consistency(self, views: Mapping[str, Tensor]) -> Tensor:
        """Squared error between the student and the teacher's sharpened prediction (RSCFed Eqs. 2, 3)."""
        h = self.hparams
        with torch.no_grad():
            teacher = wide(self.teacher(views["teacher"])).softmax(dim=1)
            target = sharpen(teacher, h.temperature)
        student = wide(self(views["student"])).softmax(dim=1)
        divisor = h.batch_size if h.mse_reduction == "fixed_batch" else len(student)
        return squared_error(student, target, divisor)

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Move the teacher's parameters (not its buffers) towards the student (RSCFed Eq. 4)."""
        if "unlabelled" in batch:
            decay = ema_decay(self.teacher_step, self.hparams.ema_decay, self.hparams.ema_ramp)
            ema_update(self.teacher.parameters(), self.model.parameters(), decay)
            self.teacher_step += 1

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Labelled clients share their part of the weight, unlabelled ones the rest."""
        sizes, labelled = [u.weight for u in uploads], [u.visit.labelled for u in uploads]
        weights = share_weights(sizes, labelled, self.hparams.labelled_weight_mode, self.hparams.unlabelled_split)
        self.load_tensors(weighted_mean([u.tensors for u in uploads], weights))
