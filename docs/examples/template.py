"""A template to copy: a warm-up on labels, then confident pseudo-labels, and an average in which labels count.

It avoids three common reasons why a first method ends at chance. An untrained network makes wrong pseudo-labels and
learns them, so the first rounds use only labels. A client without labels that relabels its images in every step
drifts away from the others, so it labels them once per visit, with the model it has received. And a client with twenty
labels among thousands of images hardly counts in an average by images, so a label counts as much as many images, and
images that were not used do not count.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, LocalWork, Pass, Site, Stream, Upload


class Template(FedMethod):
    """Pseudo-labels of the received model after a warm-up, averaged by the data clients used (an example, 2026).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold``: least probability of a selected pseudo-label | - | - | 0.95 |
    | ``lambda_u``: weight of the pseudo-labels' loss | - | - | 1 |
    | ``warmup_rounds`` on labels only | - | - | 10 |
    | ``label_weight`` of a label in the average, in images | - | - | 100 |
    """

    pipeline = "randaugment_levels"  # has the view `strong`; the default of `--data.pipeline`
    views = {"labelled": {"x": "weak"}}
    scopes = {"learnt": "local"}
    learnt: Tensor
    """Pseudo-labels of this visit."""

    def __init__(
        self,
        model: nn.Module,
        threshold: float = 0.95,
        lambda_u: float = 1.0,
        warmup_rounds: int = 10,
        label_weight: float = 100.0,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require("from 0", label_weight=label_weight >= 0)
        self.require_thresholds("threshold")
        self.register_buffer("learnt", torch.zeros(()))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """The sampled clients; in the warm-up, only those with labels."""
        drawn = roster.sample(round)
        return [[client for client in drawn if client in roster.labelled] if self.is_warmup(round) else drawn]

    @torch.no_grad()
    def local_work(self, client: Site) -> LocalWork:
        """Passes over the labels and, after the warm-up, over the images for which the received model is confident."""
        streams, index = self.streams(client.data), client.data.unlabelled
        self.learnt.zero_()
        if len(index) and not self.is_warmup(client.visit.round):
            self.eval()
            confidence, labels = torch.cat([self.predict(x) for x in client.views("weak", index)]).max(dim=1)
            sure = confidence >= self.hparams.threshold
            client.report_pseudo_labels(index, labels, sure)
            self.learnt.fill_(sure.sum())
            if sure.any():
                streams["unlabelled"] = Stream(
                    index[sure], self.hparams.batch_size, {"x": "strong"}, {"y": labels[sure]}
                )
                if "labelled" in streams:
                    streams["labelled"].cycle = True  # repeat the labels as long as there are images
        return [Pass(streams)] * self.hparams.local_epochs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy on labels, and on pseudo-labels with strong views; a batch may lack either."""
        weight = {"labelled": 1.0, "unlabelled": self.hparams.lambda_u}
        losses = [weight[name] * F.cross_entropy(self(samples["x"]), samples["y"]) for name, samples in batch.items()]
        return torch.stack(losses).sum()

    def make_upload(self, client: Site) -> Upload | None:
        """The client's tensors, or None if it trained on nothing; a label counts as ``label_weight`` images."""
        weight = float(self.learnt) + self.hparams.label_weight * len(client.data.labelled)
        return Upload(client.visit, self.tensors("shared"), weight) if weight > 0 else None
