"""One correct method, and variants of it that do what the documents allow."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import FSSLDataModule
from methods.base import Batch, FedMethod, Site, Visit
from methods.parts.aggregation import weighted_mean


class Sound(FedMethod):
    """Pseudo-labels of every step, debiased by the client's own running mean of predictions.

    It has what the faults are about: a personal statistic, a shared buffer, draws in a step, and work that the server
    does with the whole data set.
    """

    scopes = {"prior": "personal", "centre": "server"}
    views = {"labelled": {"x": "weak"}, "unlabelled": {"x": "weak"}}
    prior: Tensor
    usual: Tensor
    centre: Tensor

    def __init__(self, model: nn.Module, num_classes: int, threshold: float = 0.6, **base: Any) -> None:
        super().__init__(model, **base)
        self.register_buffer("prior", torch.full((num_classes,), 1.0 / num_classes))
        self.register_buffer("usual", torch.full((num_classes,), 1.0 / num_classes))
        self.register_buffer("centre", torch.zeros(()))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross-entropy on labels, or on pseudo-labels where the debiased prediction is confident."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
        if "unlabelled" in batch:
            x = batch["unlabelled"]["x"]
            with torch.no_grad():
                found = self.predict(x)
                self.follow(found.mean(dim=0))
                debiased = found / self.known_prior()
                confidence, labels = (debiased / debiased.sum(dim=1, keepdim=True)).max(dim=1)
                keep = (confidence >= self.hparams.threshold).float()
            self.log("pseudo/certain", keep.mean())
            losses = F.cross_entropy(self(x + 0.01 * self.noise(x)), labels, reduction="none")
            loss = loss + (losses * keep).mean()
        return loss

    def follow(self, mean: Tensor) -> None:
        """Update the client's and the shared prior from predictions ``[C]``."""
        self.prior.mul_(0.5).add_(0.5 * mean)
        self.usual.mul_(0.9).add_(0.1 * mean)

    def known_prior(self) -> Tensor:
        """Return the divisor of predictions, ``[C]``."""
        return self.prior

    def noise(self, x: Tensor) -> Tensor:
        """Draw noise in the shape of images."""
        return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=self.generator)

    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Measure the mean of some training images."""
        self.centre.copy_(data.take("test", torch.arange(50, device=self.device)).mean())

    def aggregate(self, uploads: Any) -> None:
        """Take the weighted mean, moved slightly towards the measured mean."""
        self.load_tensors(weighted_mean([upload.tensors for upload in uploads], [u.weight for u in uploads]))
        with torch.no_grad():
            self.model.head.classifier.bias.add_(1e-3 * self.centre)


class Quantised(Sound):
    """No fault: messages take a quarter of the bytes."""

    def sent_bytes(self, sent: Any, visit: Visit) -> int:
        """One byte for four."""
        return super().sent_bytes(sent, visit) // 4


class LargeStatistic(Sound):
    """No fault: clients upload more than they are sent."""

    def make_upload(self, client: Site) -> Any:
        """A covariance of features."""
        upload = super().make_upload(client)
        assert upload is not None
        upload.stats["covariance"] = torch.ones(256, 256)
        return upload


class KnownLosses(Sound):
    """No fault: steps by hand that log their loss under another name, and an argument without a default."""

    contract_args = {"weight": 1.0}

    def __init__(self, model: nn.Module, num_classes: int, weight: float, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        """The automatic step."""
        (optimizer,) = self.trainer.optimizers
        loss = self.hparams.weight * super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        self.log("cost", loss.detach())


class Closed(FedMethod):
    """No fault: every argument of its base is fixed."""

    def __init__(self, model: nn.Module, share: float = 0.5) -> None:
        super().__init__(model, lr=0.02, local_epochs=1)
        self.share = share

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """A share of the cross-entropy."""
        return self.share * F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class NotYetKnown(FedMethod):
    """No fault: NaN marks what a client, or the server, does not know before the first round."""

    scopes = {"best": "personal", "slowest": "server"}

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.register_buffer("best", torch.tensor(float("nan")))
        self.register_buffer("slowest", torch.tensor([float("nan"), float("nan")]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class SendsNoise(Closed):
    """No fault: every client is sent a model of its own, with noise from the stream of the hook."""

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """A little of it."""
        sent = super().broadcast(server, visit)
        return {name: value + 1e-3 * torch.randn_like(value) for name, value in sent.items()}
