"""Hard pseudo-labels above a threshold, learnt on strong views: a client's objective that several methods share."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.streams import SERVER
from methods.base import Batch, FedMethod, LocalWork, Pass, Scope, Site, Stream
from methods.parts.dpl import debias


class PseudoLabels(FedMethod):
    """FixMatch's objective (Sohn et al., NeurIPS 2020), with labels that are made once per visit.

    A client labels its images on weak views with the model that it received, in blocks of ``eval_batch``, keeps the
    labels whose probability reaches ``threshold``, and learns them on strong views, together with its own labels where
    it has any. These are repeated as often as the kept images need, or walked through once where nothing is kept.

    Args:
        model: the network.
        threshold: smallest probability that makes a pseudo-label.
        lambda_u: weight of the pseudo-labels' loss.
        dpl: debias probabilities before they become pseudo-labels (FedDB's DPL, ``dpl.debias``).
        full_batch: one step per epoch, on all labelled and all kept images of the client; a client that keeps nothing
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
        """``reset_momentum`` is about clients: a server always keeps its optimiser."""
        return ["personal"] if self.visit.client == SERVER else super().optimizer_scopes()

    def local_work(self, client: Site) -> LocalWork:
        """Every local epoch walks through the same images, in new views."""
        streams = self.visit_streams(client)
        if self.hparams.full_batch:
            for stream in streams.values():
                stream.batch_size = max(len(stream), 1)
            if "labelled" in streams and self.labels_alone and not has_batches(streams, "unlabelled"):
                streams["labelled"].batch_size = self.labels_alone
        return [Pass(streams)] * int(self.hparams.local_epochs)

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """What a local epoch walks through: the client's labels, and the images that are pseudo-labelled now."""
        streams, index = self.streams(client.data), client.data.unlabelled
        if len(index):
            streams |= self.pseudo_labelled(client, self.debiased(self.probabilities(client, index)))
            if "labelled" in streams:
                streams["labelled"].cycle = has_batches(streams, "unlabelled")
        return streams

    @torch.no_grad()
    def probabilities(self, client: Site, index: Tensor) -> Tensor:
        """Predictions ``[n, C]`` of the received model on one weak view per image, in evaluation mode."""
        self.eval()
        with self.autocast():
            return torch.cat([self.predict(x) for x in client.views("weak", index, size=self.eval_batch)])

    def debiased(self, probabilities: Tensor) -> Tensor:
        """The probabilities ``[n, C]`` that pseudo-labels are made from."""
        return debias(probabilities) if self.hparams.dpl else probabilities

    def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels ``[n]`` and which of them are used, bool ``[n]``."""
        confidence, labels = probabilities.max(dim=1)
        return labels, confidence >= self.hparams.threshold

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """The streams of pseudo-labelled images, given the probabilities ``[n, C]`` of all of them."""
        index = client.data.unlabelled
        labels, keep = self.select(probabilities)
        client.report_pseudo_labels(index, labels, keep)
        return {"unlabelled": self.fixed(index[keep], {"strong": "strong"}, y=labels[keep])}

    def fixed(self, index: Tensor, views: Mapping[str, str], **fields: Tensor) -> Stream:
        """A stream of images in these views, with fixed fields (labels ``y``)."""
        return Stream(index, self.hparams.batch_size, views, fields, min_batch=self.hparams.min_batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Cross-entropy of labels plus ``lambda_u`` times that of pseudo-labels."""
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
    """The same objective with labels made in every step by the model as it stands, as FixMatch's paper has it.

    Batches hold all images; those below the threshold count as loss 0. DPL divides by the mean over the batch.

    Args:
        model: the network.
        unsup_norm: the loss is a mean over the ``confident`` images of the batch or over ``all``.
    """

    def __init__(self, model: nn.Module, unsup_norm: Literal["confident", "all"] = "confident", **base: Any) -> None:
        super().__init__(model, **base)
        self.site: Site | None = None

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """The client's labels, and all its other images."""
        self.site, streams = client, self.streams(client.data)
        if "unlabelled" in streams:
            streams["unlabelled"].fields = {"index": client.data.unlabelled}
        return streams

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Labels from the weak views under the present weights, without gradient, and their loss."""
        with torch.no_grad():
            labels, keep = self.select(self.debiased(self.predict(samples["weak"])))
        if self.site is not None:
            self.site.report_pseudo_labels(samples["index"], labels, keep)
        losses = F.cross_entropy(self(samples["strong"]), labels, reduction="none") * keep
        if self.hparams.unsup_norm == "confident":
            return losses.sum() / keep.sum().clamp(min=1)
        return losses.mean()

    def on_train_end(self) -> None:
        """The step reports to no site any more."""
        super().on_train_end()
        self.site = None


def has_batches(streams: Mapping[str, Stream], name: str) -> bool:
    """Whether there is a stream of that name that gives any batch."""
    return name in streams and streams[name].usable
