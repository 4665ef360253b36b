"""FedIRM: inter-client relation matching between labelled and unlabelled clients."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, Site, Upload, Visit
from methods.fed_consist import FedConsist
from methods.models.backbone import DropsUnits
from methods.parts.labelling import entropy, entropy_threshold
from methods.parts.losses import relation_loss, relation_matrix, squared_error
from methods.parts.schedules import exponential_ramp
from methods.parts.tensors import one_hot, wide

PASSES = 11


class FedIRM(FedConsist):
    """Federated inter-client relation matching (Liu et al., MICCAI 2021), as run in the RSCFed tables.

    A labelled client also returns its class relation matrix; their mean reaches the unlabelled clients in the next
    round, which match their own relations to it on samples that are certain under Monte-Carlo dropout.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``loss_weight`` times the ramp of ``ramp_length`` rounds | 10 λ | 15 λ (for Adam), 30 rounds | 1 λ, 30 rounds |
    | ``warmup_rounds`` (unlabelled clients start), ``ramp_offset`` | 20 | 21, 0 | 7, 7: the tables' warm-up |
    | ``ema_decay`` | 0.99 | 0.99 | 0.999: the tables' (``teacher_train`` as the code) |
    | ``confidence_gate``, ``entropy_gate`` | 0.3, 2.0 | 0.3, 2.0 (no effect for C <= 7) | as the code (``ln_scaled``) |
    | ``labelled_loss`` | smoothed cross-entropy | smoothed, two views | ``ce``: as the other rows |
    | ``skip_absent`` classes | not given | uniform rows | false |
    | ``head_dropout`` of the network | dropout | 0.2 | 0.5 in the suites: RSCFed's network names it and never uses it |
    | aggregation | sizes | unweighted | ``share:0.5`` ("weight adjust"), ``plain`` for "origi." |

    ``lambda_u`` and ``temperature`` of ``FedConsist`` have no part in it. Dropout sits only in the head
    (``head_dropout`` of the network), so the stochastic passes reuse the features of the gradient pass; what follows
    the dropout is linear, so the mean over passes is taken there.

    Args:
        teacher_train: the teacher predicts in training mode where the student trains, as released.
    """

    relation: Tensor
    ramped_weight: Tensor

    scopes = {**FedConsist.scopes, "relation": "server"}

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        loss_weight: float = 1.0,
        ramp_length: int = 30,
        ramp_offset: int = 7,
        confidence_gate: float = 0.3,
        entropy_gate: float | Literal["ln_scaled"] = 2.0,
        labelled_loss: Literal["ce", "smoothed_two_view"] = "ce",
        skip_absent: bool = False,
        teacher_train: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        if not any(isinstance(part, DropsUnits) and part.dropout for part in self.model.head.modules()):
            warnings.warn(
                "no unit is dropped in the network's head, so FedIRM's uncertainty is the entropy of a single "
                "prediction; its rows in the tables have model_args.head_dropout=0.5",
                stacklevel=2,
            )
        self.require("from 0", loss_weight=loss_weight >= 0)
        self.require("from 0, or ln_scaled", entropy_gate=isinstance(entropy_gate, str) or entropy_gate >= 0)
        self.require_thresholds("confidence_gate")
        if labelled_loss == "smoothed_two_view":
            self.views = {**FedConsist.views, "labelled": {"x": "weak", "x2": "weak"}}
        self.entropy_limit = entropy_threshold(entropy_gate, num_classes)
        self.register_buffer("relation", torch.full((num_classes, num_classes), 1.0 / num_classes))
        self.register_buffer("ramped_weight", torch.zeros((), dtype=torch.float64), persistent=False)

    def train(self, mode: bool = True) -> "FedIRM":
        """The teacher follows the student's mode, as released, unless ``teacher_train`` is off."""
        super().train(mode)
        self.teacher.train(mode and self.hparams.teacher_train)
        return self

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """The global model and the labelled clients' mean relation matrix."""
        return {**super().broadcast(server, visit), "relation": server["relation"]}

    @torch.no_grad()
    def on_train_start(self) -> None:
        """The weight of the round."""
        super().on_train_start()
        h = self.hparams
        ramp = exponential_ramp(self.visit.round - h.ramp_offset, h.ramp_length)
        self.ramped_weight.fill_(h.loss_weight * ramp)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Labelled: cross-entropy. Unlabelled: ramped consistency plus relation matching."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + self.labelled_step(batch["labelled"])
        if "unlabelled" in batch:
            loss = loss + self.unlabelled_step(batch["unlabelled"])
        return loss

    def unlabelled_step(self, views: Mapping[str, Tensor]) -> Tensor:
        """Consistency with the teacher and with the labelled clients' relations, both ramped."""
        h = self.hparams
        features = self.model.features(views["student"])
        logits = wide(self.model.head(features))
        probabilities = logits.softmax(dim=1)
        with torch.no_grad():
            teacher = wide(self.teacher(views["teacher"])).softmax(dim=1)
            uncertainty = entropy(wide(self.model.head(features, passes=PASSES)).softmax(dim=1))
            confidence, pseudo = probabilities.max(dim=1)
            keep = (uncertainty < self.entropy_limit) & (confidence >= h.confidence_gate)
            present = (one_hot(pseudo, logits.shape[1]) & keep[:, None]).any(dim=0)
        relation = relation_matrix(logits, pseudo, keep)
        matching = relation_loss(self.relation, relation, present if h.skip_absent else None)
        divisor = h.batch_size if h.mse_reduction == "fixed_batch" else len(probabilities)
        consistency = squared_error(probabilities, teacher, divisor)
        both = consistency + matching * keep.any()
        loss: Tensor = self.ramped_weight.to(both.dtype) * both
        return loss

    def labelled_step(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy; the relation matrix of the first view is tallied for the upload."""
        logits = wide(self(samples["x"]))
        self.tally("relation", relation_matrix(logits.detach(), samples["y"]))
        if self.hparams.labelled_loss == "ce":
            return F.cross_entropy(logits, samples["y"])
        second = F.cross_entropy(self(samples["x2"]), samples["y"], label_smoothing=0.1)
        return F.cross_entropy(logits, samples["y"], label_smoothing=0.1) + second

    def make_upload(self, client: Site) -> Upload | None:
        """The model, and a labelled client's mean relation matrix."""
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
