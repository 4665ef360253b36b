"""Hard pseudo-labels above a threshold, learnt on strong views: a client objective shared by several methods."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.streams import SERVER
from methods.base import Batch, FedMethod, LocalWork, Pass, Scope, Site, Stream
from methods.parts.dpl import debias


class PseudoLabels(FedMethod):
    """FixMatch's objective (Sohn et al., NeurIPS 2020), with labels made once per visit.

    A client labels weak views of its images with the received model, in blocks of ``eval_batch``, keeps the labels
    whose probability reaches ``threshold``, and learns them on strong views, together with its own labels if it has
    any. Own labels are repeated as often as the kept images need, or used once if nothing is kept.

    Args:
        model: the network.
        threshold: smallest probability of a pseudo-label.
        lambda_u: weight of the pseudo-label loss.
        dpl: debias probabilities before they become pseudo-labels (FedDB's DPL, ``dpl.debias``).
        full_batch: one step per epoch, on all labelled and all kept images of the client; a client without kept images
            takes its labels in batches of 64 (FedDB's released code).
        batch_size: images per step of each stream.
    """

    views = {"labelled": {"x": "weak"}, "unlabelled": {"weak": "weak", "strong": "strong"}}

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
        super().__init__(model, batch_size=batch_size, **base)
        self.require("from 0", lambda_u=lambda_u >= 0)
        self.require_thresholds("threshold")

    def optimizer_scopes(self) -> Sequence[Scope]:
        """Apply ``reset_momentum`` to clients only: a server always keeps its optimiser state."""
        return ["personal"] if self.visit.client == SERVER else super().optimizer_scopes()

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
        """Return the streams of a local epoch: the client's labels, and the images pseudo-labelled now."""
        streams, index = self.streams(client.data), client.data.unlabelled
        if len(index):
            streams |= self.pseudo_labelled(client, self.debiased(self.probabilities(client, index)))
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

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """Return the streams of pseudo-labelled images, given the probabilities ``[n, C]`` of all images."""
        index = client.data.unlabelled
        labels, keep = self.select(probabilities)
        client.report_pseudo_labels(index, labels, keep)
        return {"unlabelled": self.fixed(index[keep], {"strong": "strong"}, y=labels[keep])}

    def fixed(self, index: Tensor, views: Mapping[str, str], **fields: Tensor) -> Stream:
        """Return a stream of images in these views, with fixed fields (labels ``y``)."""
        return Stream(index, self.hparams.batch_size, views, fields, min_batch=self.hparams.min_batch)

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
        """Mean cross-entropy of the pseudo-labels ``y`` on strong views."""
        return F.cross_entropy(self(samples["strong"]), samples["y"])


class LabelsEveryStep(PseudoLabels):
    """The same objective with labels made in every step by the current model, as in FixMatch's paper.

    Batches hold all images; those below the threshold have loss 0. DPL divides by the mean over the batch.

    Args:
        model: the network.
        unsup_norm: the loss is a mean over the ``confident`` images of the batch or over ``all``.
    """

    def __init__(self, model: nn.Module, unsup_norm: Literal["confident", "all"] = "confident", **base: Any) -> None:
        super().__init__(model, **base)
        self.site: Site | None = None

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """Return the client's labels and all its other images."""
        self.site, streams = client, self.streams(client.data)
        if "unlabelled" in streams:
            streams["unlabelled"].fields = {"index": client.data.unlabelled}
        return streams

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Label the weak views with the current weights, without gradient, and return the loss."""
        with torch.no_grad():
            labels, keep = self.select(self.debiased(self.predict(samples["weak"])))
        if self.site is not None:
            self.site.report_pseudo_labels(samples["index"], labels, keep)
        losses = F.cross_entropy(self(samples["strong"]), labels, reduction="none") * keep
        if self.hparams.unsup_norm == "confident":
            return losses.sum() / keep.sum().clamp(min=1)
        return losses.mean()

    def on_train_end(self) -> None:
        """Stop reporting pseudo-labels to the site."""
        super().on_train_end()
        self.site = None


def has_batches(streams: Mapping[str, Stream], name: str) -> bool:
    """Whether the named stream exists and has any batch."""
    return name in streams and streams[name].usable
