"""FixMatch in a federation: hard pseudo-labels above a fixed threshold, learnt on strong views."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, LocalWork, Pass, Scope, Site, Stream
from methods.parts.server import LabelsAtServer, ServerMomentum
from methods.parts.tensors import debias, masked_mean


class FixMatch(LabelsAtServer, ServerMomentum):
    """Federated FixMatch (Sohn et al., NeurIPS 2020), the baseline of (FL)2 (NeurIPS 2024, Table 2) and FedDB.

    Once per visit a client labels weak views of its images with the received model, in blocks of ``eval_batch``, and
    keeps the labels whose probability reaches ``threshold``. It learns them on strong views, together with its own
    labels x, y, if it has any::

        CE(y, p(weak(x))) + lambda_u CE(y_hat, p(strong(u)))

    Own labels are repeated as often as the kept images need, or used once if nothing is kept. A server with labels
    trains as in ``LabelsAtServer``. FixMatch's paper makes labels in every step (``every_step``), with the current
    model; batches then hold all images, and those below the threshold have loss 0. That is the ablation
    ``methods.ablations.fixmatch.EveryStep``. FedDure's baseline of the same name takes a different step: see
    ``LocalSSL``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold`` | 0.95 | 0.95 ((FL)2, FedDB) | 0.95, inclusive |
    | ``lambda_u`` weight of the pseudo-labels | 1 | 1 | 1 |
    | when labels are made | every step | once per round ((FL)2, FedDB) | once per round |
    | loss is a mean over | all | selected ((FL)2, FedDB) | selected |
    | a client without any pseudo-label | not given | stays in the average, unchanged | as released |
    | ``lr``, ``momentum``, ``nesterov``, ``weight_decay`` | 0.03, 0.9, yes, 5e-4 | the same | the same |
    | ``clip_norm`` | not given | 1, before weight decay | 1 |
    | ``batch_size``, ``local_epochs`` | 32, 5 ((FL)2) | the same | the same |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 ((FL)2) | the same | the same |
    | ``server_momentum``, ``lr_schedule`` | 0.5, cosine | 0.5, constant ((FL)2: never advanced) | 0.5, ``cosine`` |
    | ``reset_momentum`` of the clients | not given | kept over the rounds | false |

    Args:
        model: the network.
        threshold: smallest probability of a pseudo-label.
        lambda_u: weight of the pseudo-label loss.
        dpl: debias probabilities before they become pseudo-labels (FedDB's DPL, ``methods.parts.tensors.debias``);
            labels made in a step are debiased by the mean over its batch.
        full_batch: one step per epoch, on all labelled and all kept images of the client; a client without kept images
            takes its labels in batches of 64 (FedDB's released code).
        batch_size: images per step of each stream.
    """

    views = {"labelled": {"x": "weak"}, "unlabelled": {"weak": "weak", "strong": "strong"}}

    every_step: ClassVar[bool] = False
    """Whether labels are made in every step."""
    labels_alone: ClassVar[int | None] = 64
    """Labelled images per step, with ``full_batch``, of a client that keeps nothing; ``None``: all of them."""

    def __init__(
        self,
        model: nn.Module,
        threshold: float = 0.95,
        lambda_u: float = 1.0,
        dpl: bool = False,
        full_batch: bool = False,
        batch_size: int = 32,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require_thresholds("threshold")

    def optimizer_scopes(self) -> Sequence[Scope]:
        """Apply ``reset_momentum`` to clients only: a server always keeps its optimiser state."""
        return ["personal"] if self.visit.at_server else super().optimizer_scopes()

    # What a client trains on.

    def local_work(self, client: Site) -> LocalWork:
        """Pass over the same images in every local epoch, in new views."""
        streams = self.visit_streams(client)
        if self.hparams.full_batch:
            for stream in streams.values():
                stream.batch_size = max(len(stream), 1)
            if "labelled" in streams and self.labels_alone and not has_batches(streams, "unlabelled"):
                streams["labelled"].batch_size = self.labels_alone
        return [Pass(streams)] * int(self.hparams.local_epochs)

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """Return the streams of a local epoch: the client's labels, and its other images, pseudo-labelled now."""
        streams, index = self.streams(client.data), client.data.unlabelled
        if len(index) and not self.every_step:
            p = self.debiased(self.probabilities(client, index))
            labels, keep = self.select(p)
            client.report_pseudo_labels(index, labels, keep)
            streams |= self.pseudo_labelled(client, p, labels, keep)
            if "labelled" in streams:
                streams["labelled"].cycle = has_batches(streams, "unlabelled")
        return streams

    @torch.no_grad()
    def probabilities(self, client: Site, index: Tensor) -> Tensor:
        """Predict one weak view per image with the received model in evaluation mode, ``[n, C]``."""
        self.eval()
        with self.autocast():
            return torch.cat([self.predict(x) for x in client.views("weak", index, size=self.eval_batch)])

    def debiased(self, probabilities: Tensor) -> Tensor:
        """Return the probabilities ``[n, C]`` from which pseudo-labels are made."""
        return debias(probabilities) if self.hparams.dpl else probabilities

    def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return pseudo-labels ``[n]`` and which of them are used, bool ``[n]``."""
        confidence, labels = probabilities.max(dim=1)
        return labels, confidence >= self.hparams.threshold

    def pseudo_labelled(self, client: Site, p: Tensor, labels: Tensor, keep: Tensor) -> dict[str, Stream]:
        """Return the streams of pseudo-labelled images.

        Args:
            client: the site.
            p: probabilities of all its unlabelled images, ``[n, C]``.
            labels: their pseudo-labels, ``[n]``.
            keep: which of them are used, bool ``[n]``.
        """
        return {"unlabelled": self.fixed(client.data.unlabelled[keep], {"strong": "strong"}, y=labels[keep])}

    def fixed(self, index: Tensor, views: Mapping[str, str], **fields: Tensor) -> Stream:
        """Return a stream of images in these views, with fixed fields (labels ``y``)."""
        return Stream(index, self.hparams.batch_size, views, fields, min_batch=self.hparams.min_batch)

    # A step.

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the cross-entropy on labels plus ``lambda_u`` times that on pseudo-labels."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
            self.log("loss_labelled", loss.detach())
        if "unlabelled" in batch:
            unlabelled = self.unlabelled_loss(batch["unlabelled"])
            self.log("loss_unlabelled", unlabelled.detach())
            loss = loss + self.hparams.lambda_u * unlabelled
        return loss

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Mean cross-entropy of the pseudo-labels on strong views: those of the visit, ``y``, or new ones."""
        if not self.every_step:
            return F.cross_entropy(self(samples["strong"]), samples["y"])
        with torch.no_grad():
            labels, keep = self.select(self.debiased(self.predict(samples["weak"])))
        self.report_pseudo_labels(samples["index"], labels, keep)
        losses = F.cross_entropy(self(samples["strong"]), labels, reduction="none")
        return self.mean_loss(losses, keep)

    def mean_loss(self, losses: Tensor, keep: Tensor) -> Tensor:
        """Mean of a batch's losses ``[B]`` over the images that are kept."""
        return masked_mean(losses, keep)


def has_batches(streams: Mapping[str, Stream], name: str) -> bool:
    """Whether the named stream exists and has any batch."""
    return name in streams and streams[name].usable
