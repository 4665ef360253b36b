"""A teacher per client labels all its images once per visit; clients are weighted by the images they used."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, FedMethod, LocalWork, Pass, Site, Stream, Upload
from methods.parts.tensors import ema_update


class OwnTeacher(FedMethod):
    """Pseudo-labels from a moving average of the models that a client has received (an example, 2026).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold`` of the teacher's confidence | - | - | 0.9 |
    | ``decay`` of the teacher per visit | - | - | 0.5 |
    """

    scopes = {"teacher": "personal", "used": "local"}
    used: Tensor

    def __init__(self, model: nn.Module, threshold: float = 0.9, decay: float = 0.5, **base: Any) -> None:
        super().__init__(model, **base)
        self.require("from 0 to 1", threshold=0 <= threshold <= 1, decay=0 <= decay <= 1)
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("used", torch.zeros(()))

    @torch.no_grad()
    def local_work(self, client: Site) -> LocalWork:
        """Update the teacher; train on the labels and on the images for which the teacher is confident."""
        decay = torch.tensor(0.0 if client.visit.first else self.hparams.decay, device=self.device)
        ema_update(self.teacher.parameters(), self.model.parameters(), decay)
        streams, index = self.streams(client.data), client.data.unlabelled
        if len(index):
            self.eval()
            probabilities = torch.cat([self.teacher(x).softmax(dim=1) for x in client.views("test", index)])
            confidence, labels = probabilities.max(dim=1)
            keep = confidence >= self.hparams.threshold
            client.report_pseudo_labels(index, labels, keep)
            streams["unlabelled"] = Stream(index[keep], self.hparams.batch_size, {"x": "weak"}, {"y": labels[keep]})
        self.used.fill_(sum(len(stream) for stream in streams.values()))
        return [Pass(streams)] * self.hparams.local_epochs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy on labels and on pseudo-labels."""
        losses = {name: F.cross_entropy(self(samples["x"]), samples["y"]) for name, samples in batch.items()}
        for name, loss in losses.items():
            self.log(f"loss_{name}", loss.detach())
        return torch.stack(list(losses.values())).sum()

    def make_upload(self, client: Site) -> Upload | None:
        """The shared tensors, or None if the client had nothing to train on."""
        if not self.used:
            return None
        return Upload(client.visit, self.tensors("shared"), float(client.visit.size), {"used": self.used.clone()})

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """The numbers of images that the clients used."""
        used: list[float] = torch.stack([upload.stats["used"] for upload in uploads]).tolist()
        return used
