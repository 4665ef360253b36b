"""Variants of CBAFed: how pseudo-labels are made (Fig. 3), and where paper and released code disagree."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from methods.base import Batch, LocalWork, Pass, Site, Stream
from methods.cbafed import CBAFed, assign, class_counts
from methods.parts.tensors import masked_mean, wide


class RebuiltSets(CBAFed):
    """Label a client's images again before each local epoch (Fig. 3) instead of once per visit.

    Upload and weight count the visit's last set.
    """

    def unlabelled_work(self, client: Site) -> LocalWork:
        """Make each epoch's set when the epoch begins."""
        # Sets before the last are numbered 1, 2, ..., so that a single epoch equals that of a fixed set.
        epochs = int(self.hparams.local_epochs)
        return [partial(self.pseudo_labelled, client, (epoch + 1) % epochs) for epoch in range(epochs)]


class BatchByBatch(CBAFed):
    """Label each batch with the model being trained (Fig. 3; Fed-Consist of CBAFed's tables), instead of a whole set.

    Label and loss come from the same forward pass in training mode; class counts are averages per epoch.
    """

    def unlabelled_work(self, client: Site) -> LocalWork:
        """Pass over all images in every epoch."""
        h, index = self.hparams, client.data.unlabelled
        everything = Stream(index, h.batch_size, {"x": "weak"}, {"index": index}, min_batch=h.min_batch)
        return [Pass({"unlabelled": everything})] * int(h.local_epochs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross-entropy of the batch's kept images, and add them to the class counts.

        It is 0 if none are kept; no gradient flows through the labels.
        """
        if "unlabelled" not in batch:
            return super().training_step(batch, batch_idx)
        samples = batch["unlabelled"]
        logits = wide(self(samples["x"]))
        labels, confident, rescued = assign(logits.detach().softmax(dim=1), self.thresholds, self.tail)
        kept = confident | rescued
        self.counts.add_(class_counts(labels, len(self.counts), kept) / self.hparams.local_epochs)
        self.report_pseudo_labels(samples["index"], labels, kept)
        return masked_mean(F.cross_entropy(logits, labels, reduction="none"), kept)


class PlainImages(CBAFed):
    """Label the image itself, as in the paper, and train on fresh views of it.

    The released code labels a weak view and trains on the same view.
    """

    def labelled_views(self, client: Site, index: Tensor, number: int, block: int) -> Iterable[Tensor]:
        """Return the images as in evaluation."""
        return client.views("test", index, f"prepare/{number}", block)

    def pseudo_labelled(self, client: Site, number: int = 0) -> Pass:
        """Return the kept images and their labels; views are drawn anew in every epoch."""
        stream = super().pseudo_labelled(client, number).streams["pseudo"]
        return Pass({"pseudo": replace(stream, views={"x": "weak"}, fields={"y": stream.fields["y"]})})


class WarmUpAtClients(CBAFed):
    """In the warm-up, labelled clients train ``labelled_epochs`` epochs with the residual connection over them.

    This follows the released code, whose warm-up is a single visit of all epochs; the paper connects the averages of
    rounds (Eq. 3). For one client and one visit the two are the same; a further visit takes a new first reference.
    """

    def connects_epochs(self) -> bool:
        """Whether the client is labelled."""
        return self.visit.labelled

    def connect(self, round: int) -> None:
        """Apply the residual connection over rounds only after the warm-up."""
        if not self.is_warmup(round):
            super().connect(round)
