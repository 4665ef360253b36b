"""A template: labels first, then confident pseudo-labels, and an average in which labels count. Copy it and change it.

It has what a first method often lacks when it ends at chance. A network that knows nothing makes wrong pseudo-labels
and learns them, so the first rounds are of labels alone. A client without labels that labels its images anew in every
step runs away from the others, so it asks the model that it was sent, once per visit. And a client with twenty labels
among thousands of images hardly counts in an average by images, so a label weighs as many, and images that taught
nothing do not count.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, LocalWork, Pass, Site, Stream, Upload


class Template(FedMethod):
    """Pseudo-labels of the received model after a warm-up, averaged by what clients learnt from (an example, 2026).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold``: probability from which a pseudo-label counts | - | - | 0.95 |
    | ``lambda_u``: weight of the pseudo-labels' loss | - | - | 1 |
    | ``warmup_rounds`` on labels alone | - | - | 10 |
    | ``label_weight``: images that a label weighs in the average | - | - | 100 |
    """

    pipeline = "randaugment_levels"  # has the view `strong`; taken where `--data.pipeline` is not given
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
        self.require("from 0", lambda_u=lambda_u >= 0, label_weight=label_weight >= 0)
        self.require_thresholds("threshold")
        self.register_buffer("learnt", torch.zeros(()))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """The clients drawn; in the warm-up those of them that hold labels."""
        drawn = roster.sample(round)
        return [[client for client in drawn if client in roster.labelled] if self.is_warmup(round) else drawn]

    @torch.no_grad()
    def local_work(self, client: Site) -> LocalWork:
        """Passes over the labels and, after the warm-up, over the images that the received model is sure about."""
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
                    streams["labelled"].cycle = True  # labels again and again, as long as there are images
        return [Pass(streams)] * self.hparams.local_epochs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of labels, and of pseudo-labels on strong views, as far as the batch has any."""
        weight = {"labelled": 1.0, "unlabelled": self.hparams.lambda_u}
        losses = [weight[name] * F.cross_entropy(self(samples["x"]), samples["y"]) for name, samples in batch.items()]
        return torch.stack(losses).sum()

    def make_upload(self, client: Site) -> Upload | None:
        """The client's tensors, if it learnt from anything; a label weighs as much as ``label_weight`` images."""
        weight = float(self.learnt) + self.hparams.label_weight * len(client.data.labelled)
        return Upload(client.visit, self.tensors("shared"), weight) if weight > 0 else None
