"""A template: labels first, then confident pseudo-labels, and an average in which labels count. Copy it and change it.

It has the two things without which a first method often ends at chance. Pseudo-labels of a network that knows nothing
are wrong, and it learns them; so the first rounds are of labels alone. And a client with twenty labels among thousands
of images hardly counts in an average by images; so a label weighs as many images.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import SiteData
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, Site, Stream, Upload


class Template(FedMethod):
    """FixMatch's pseudo-labels after a warm-up, averaged by labels and images (an example, 2026).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold``: probability from which a pseudo-label counts | - | - | 0.95 |
    | ``lambda_u``: weight of the pseudo-labels' loss | - | - | 1 |
    | ``warmup_rounds`` on labels alone | - | - | 10 |
    | ``label_weight``: images that a label weighs in the average | - | - | 100 |
    """

    pipeline = "randaugment_levels"  # has the view `strong`; taken where `--data.pipeline` is not given
    views = {"labelled": {"x": "weak"}, "unlabelled": {"weak": "weak", "strong": "strong"}}

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

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """The clients drawn; in the warm-up those of them that hold labels."""
        drawn = roster.sample(round)
        return [[client for client in drawn if client in roster.labelled] if self.is_warmup(round) else drawn]

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """The streams of ``views``; in the warm-up one pass over the labels."""
        streams = super().streams(data)
        if self.is_warmup(self.visit.round):
            streams.pop("unlabelled", None)
            for labels in streams.values():
                labels.cycle = False
        return streams

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of the labels, and of pseudo-labels on strong views, as far as the batch has any."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
        if "unlabelled" in batch:
            loss = loss + self.hparams.lambda_u * self.unlabelled_loss(batch["unlabelled"])
        return loss

    def unlabelled_loss(self, images: dict[str, Tensor]) -> Tensor:
        """The network says what it sees on weak views; where it is sure, it has to say so on strong ones."""
        with torch.no_grad():
            confidence, labels = self.predict(images["weak"]).max(dim=1)
        sure = confidence >= self.hparams.threshold
        self.log("sure", sure.float().mean())
        return (F.cross_entropy(self(images["strong"]), labels, reduction="none") * sure).mean()

    def make_upload(self, client: Site) -> Upload | None:
        """The client's tensors; a label weighs as much as ``label_weight`` images."""
        upload = super().make_upload(client)
        if upload is not None:
            upload.weight = len(client.data.unlabelled) + self.hparams.label_weight * len(client.data.labelled)
        return upload
