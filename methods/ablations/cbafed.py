"""Variants of CBAFed: how pseudo-labels are made (its Fig. 3), and conflicts of its paper with its released code."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, LocalWork, Pass, Site, Stream
from methods.cbafed import CBAFed, assign, class_counts
from methods.parts.tensors import wide


class RebuiltSets(CBAFed):
    """A client labels its images anew before each local epoch (Fig. 3), instead of once per visit.

    Upload and weight count the last of the visit's sets.
    """

    def unlabelled_work(self, client: Site) -> LocalWork:
        """Each epoch's set is made when the epoch begins."""
        # The sets before the last have the numbers 1, 2, ..., so that a single epoch is that of a fixed set.
        epochs = int(self.hparams.local_epochs)
        return [partial(self.pseudo_labelled, client, (epoch + 1) % epochs) for epoch in range(epochs)]


class BatchByBatch(CBAFed):
    """Each batch is labelled by the model that it trains (Fig. 3; Fed-Consist of CBAFed's tables), not a set at once.

    Label and loss come from one forward pass in training mode; class counts are those of an epoch on average.
    """

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.site: Site | None = None

    def unlabelled_work(self, client: Site) -> LocalWork:
        """Passes over all images."""
        self.site, h, index = client, self.hparams, client.data.unlabelled
        everything = Stream(index, h.batch_size, {"x": "weak"}, {"index": index}, min_batch=h.min_batch)
        return [Pass({"unlabelled": everything})] * int(h.local_epochs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of those of the batch that are kept; an epoch's share of them is counted."""
        if "unlabelled" not in batch:
            return super().training_step(batch, batch_idx)
        samples = batch["unlabelled"]
        loss, labels, kept = batch_loss(wide(self(samples["x"])), self.thresholds, self.tail)
        self.counts.add_(class_counts(labels, len(self.counts), kept) / self.hparams.local_epochs)
        if self.site is not None:
            self.site.report_pseudo_labels(samples["index"], labels, kept)
        return loss

    def on_train_end(self) -> None:
        """The step reports to no site any more."""
        super().on_train_end()
        self.site = None


class PlainImages(CBAFed):
    """The image itself is labelled, as the paper writes, and fresh views of it are trained on; the released code labels
    a weak view and trains on that."""

    def labelled_views(self, client: Site, index: Tensor, number: int, block: int) -> Iterable[Tensor]:
        """The images as they are tested."""
        return client.views("test", index, f"prepare/{number}", block)

    def pseudo_labelled(self, client: Site, number: int = 0) -> Pass:
        """The kept images and their labels; views are cut at every epoch."""
        stream = super().pseudo_labelled(client, number).streams["pseudo"]
        return Pass({"pseudo": replace(stream, views={"x": "weak"}, fields={"y": stream.fields["y"]})})


class WarmUpAtClients(CBAFed):
    """In the warm-up a labelled client makes ``labelled_epochs`` and connects over them, as in the released code, whose
    warm-up is a single visit; the paper connects the averages of rounds (Eq. 3). For one client both are the same."""

    def connects_epochs(self) -> bool:
        """Every visit of a labelled client."""
        return self.visit.labelled

    def connect(self, round: int) -> None:
        """Over rounds only after the warm-up."""
        if not self.is_warmup(round):
            super().connect(round)


def batch_loss(logits: Tensor, thresholds: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A batch labelled by the model that it trains: loss, pseudo-labels ``[B]``, which are kept (bool ``[B]``).

    The loss is the mean cross-entropy of those kept, 0 if there is none; labels carry no gradient.
    """
    labels, confident, rescued = assign(logits.detach().softmax(dim=1), thresholds, tail)
    kept = confident | rescued
    losses = F.cross_entropy(logits, labels, reduction="none")
    return (losses * kept).sum() / kept.sum().clamp_min(1), labels, kept
