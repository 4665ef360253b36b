"""FedIRM: inter-client relation matching between labelled and unlabelled clients."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Site, StepNumber, Upload, Visit
from methods.models.backbone import DropsUnits
from methods.parts.labelled_clients import LabelledShare
from methods.parts.mean_teacher import MeanTeacher
from methods.parts.tensors import exponential_ramp, one_hot, wide

PASSES = 11


class FedIRM(LabelledShare, MeanTeacher):
    """Federated inter-client relation matching (Liu et al., MICCAI 2021), as run in the RSCFed tables.

    A labelled client learns with cross-entropy and returns the mean of its batches' class relation matrices. In the
    next round the unlabelled clients receive the mean P of these matrices and minimise w lambda(r) (L_c + L_r), with a
    teacher f', on two views x, x' of B images. The numbers are ours, since the paper's text was not at hand::

        (1) M_c = softmax(mean of f(x) over samples of class c / 2)         row c of a relation matrix
        (2) L_c = sum |softmax f(x) - softmax f'(x')|^2 / B                 consistency
        (3) H = entropy of the mean of 11 passes with dropout; certain: H < entropy_gate, max p >= confidence_gate
        (4) L_r = (KL(P || Q) + KL(Q || P)) / (2 C)                         Q: (1) of certain samples, pseudo-labels
        (5) lambda(r) = exp(-5 (1 - min(r, 30) / 30)^2)

    | hyperparameter | paper (-: not at hand) | released code | here |
    |---|---|---|---|
    | ``loss_weight`` times the ramp of ``ramp_length`` rounds | - | 15 λ (for Adam), 30 rounds | 1 λ, 30 rounds |
    | ``warmup_rounds`` (unlabelled clients start), ``ramp_offset`` | - | 21, 0 | 7, 7: as in the tables |
    | ``ema_decay`` | - | 0.99 | 0.999: as in the tables |
    | mode of the teacher | - | training mode where the student trains | as released |
    | ``confidence_gate``, ``entropy_gate`` | - | 0.3, 2.0 (no effect for C <= 7) | as released |
    | labelled loss | - | smoothed cross-entropy, two views | cross-entropy, as in the other rows |
    | rows of absent classes | - | uniform, matched like the others | as released |
    | ``head_dropout`` of the network | - | 0.2 | 0.5 in the suites: RSCFed's network has one that it never uses |
    | ``labelled_weight_mode`` | - | unweighted | ``share:0.5`` ("weight adjust"), ``plain`` for "origi." |

    Dropout is only in the head (``head_dropout`` of the network), so the stochastic passes reuse the features of the
    gradient pass, and running statistics move once per step (released code: twelve times, with the same batch). The
    layers after the dropout are linear, so the mean over passes is taken before them.
    """

    scopes = {**MeanTeacher.scopes, "relation": "server"}
    uploads_needed = "mean"
    relation: Tensor
    """Mean relation matrix of the labelled clients in the round before, ``[C, C]``; uniform in the first one."""
    ramp = StepNumber()
    """``loss_weight`` times lambda of the round."""

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        loss_weight: float = 1.0,
        ramp_length: int = 30,
        ramp_offset: int = 7,
        confidence_gate: float = 0.3,
        entropy_gate: float = 2.0,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.drops = any(isinstance(part, DropsUnits) and part.dropout for part in self.model.head.modules())
        if not self.drops:
            warnings.warn(
                "no unit is dropped in the network's head, so FedIRM's uncertainty is the entropy of a single "
                "prediction; its rows in the tables have model_args.head_dropout=0.5",
                stacklevel=2,
            )
        self.require_thresholds("confidence_gate")
        self.register_buffer("relation", torch.full((num_classes, num_classes), 1.0 / num_classes))

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send the global model and the labelled clients' mean relation matrix."""
        return {**super().broadcast(server, visit), "relation": server["relation"]}

    def on_train_start(self) -> None:
        """Give the teacher's parts the modes of the student's, as released; set the round's weight."""
        super().on_train_start()
        for teacher, student in zip(self.teacher.modules(), self.model.modules(), strict=True):
            teacher.training = student.training
        h = self.hparams
        self.ramp = h.loss_weight * exponential_ramp(self.visit.round - h.ramp_offset, h.ramp_length)  # (5)

    def labelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy; tallies the batch's relation matrix for the upload."""
        logits = wide(self(samples["x"]))
        self.tally("relation", relation_matrix(logits.detach(), samples["y"]))  # (1)
        return F.cross_entropy(logits, samples["y"])

    def unlabelled_loss(self, views: Mapping[str, Tensor]) -> Tensor:
        """``ramp (L_c + L_r)``: consistency with the teacher, and relation matching where the student is certain."""
        h = self.hparams
        features = self.model.features(views["student"])
        logits = wide(self.model.head(features))
        student = logits.softmax(dim=1)
        with torch.no_grad():
            teacher = wide(self.teacher(views["teacher"])).softmax(dim=1)
            mean_logits = wide(self.model.head(features, passes=PASSES)) if self.drops else logits
            uncertainty = entropy(mean_logits.softmax(dim=1))
            confidence, pseudo = student.max(dim=1)
            certain = (uncertainty < h.entropy_gate) & (confidence >= h.confidence_gate)  # (3)
        consistency = (student - teacher).square().sum() / h.batch_size  # (2)
        matching = relation_loss(self.relation, relation_matrix(logits, pseudo, certain))  # (4)
        return self.ramp * (consistency + matching * certain.any())

    def make_upload(self, client: Site) -> Upload | None:
        """Return the model, and at labelled clients the mean relation matrix."""
        upload = super().make_upload(client)
        relation = self.tallied("relation")
        if upload is not None and relation is not None:
            upload.stats["relation"] = relation
        return upload

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average the models, and the relation matrices for the next round."""
        super().aggregate(uploads)
        relations = [u.stats["relation"] for u in uploads if "relation" in u.stats]
        if relations:
            self.load_tensors({"relation": torch.stack(relations).mean(dim=0)})


def relation_matrix(logits: Tensor, labels: Tensor, keep: Tensor | None = None, temperature: float = 2.0) -> Tensor:
    """Class relations ``[C, C]`` (1): row c is the softmax of the mean logits of samples with label c.

    Args:
        logits: ``[B, C]``; gradients flow through them.
        labels: int64 ``[B]``.
        keep: bool ``[B]``, samples to count; default: all.
        temperature: softmax temperature.

    A class without a sample gives a uniform row (released code).
    """
    logits = wide(logits)
    members = one_hot(labels, logits.shape[1]).to(logits.dtype)
    if keep is not None:
        members = members * keep.to(logits.dtype)[:, None]
    with torch.autocast(logits.device.type, enabled=False):  # an absent class has a slope of 1e8, beyond float16
        means = members.T @ logits / (members.sum(dim=0)[:, None] + 1e-8)
    return torch.softmax(means / temperature, dim=1)


def relation_loss(target: Tensor, relation: Tensor) -> Tensor:
    """Symmetric KL divergence (4) of two relation matrices ``[C, C]``, divided by the number of classes.

    Args:
        target: reference matrix P.
        relation: matrix Q that carries the gradient.
    """
    tiny = torch.finfo(relation.dtype).tiny
    p, q = target.clamp_min(tiny), relation.clamp_min(tiny)
    return (0.5 * (p - q) * (p.log() - q.log())).sum() / len(target)


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum_c p ln(p + 1e-6)`` per sample, ``[B]``, in nats (3, released code)."""
    return -(probabilities * (probabilities + 1e-6).log()).sum(dim=1)
