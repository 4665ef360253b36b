"""One correct method, and variants with one fault each that the contract must refuse."""

import random
import time
from os import getpid
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import FSSLDataModule
from methods.base import Batch, FedMethod, LocalWork, Pass, Site, Stream, Visit
from methods.parts.aggregation import weighted_mean
from methods.parts.tensors import set_gradient


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


class LeakingPrior(Sound):
    """The prior is a plain tensor, so that one client's continues another's."""

    scopes = {"centre": "server"}

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        del self.prior
        self.prior = torch.full((num_classes,), 1.0 / num_classes)


class LastingAttribute(Sound):
    """A Python number counts this process's visits."""

    visits = 0

    def local_work(self, client: Site) -> LocalWork:
        """Count the visit."""
        self.visits += 1
        return super().local_work(client)

    def learning_rate(self) -> float:
        """It falls with the visits."""
        return super().learning_rate() / (1 + 0.1 * self.visits)


class LastingClassAttribute(Sound):
    """The same in a class attribute, a list shared by all instances."""

    seen: list[int] = []

    def local_work(self, client: Site) -> LocalWork:
        """Remember who was there."""
        self.seen.append(client.visit.client)
        return super().local_work(client)

    def learning_rate(self) -> float:
        """It falls with the visits."""
        return super().learning_rate() / (1 + 0.1 * len(self.seen))


class LateClassAttribute(Sound):
    """The same in a number that the class gets at the first visit."""

    def local_work(self, client: Site) -> LocalWork:
        """Count."""
        type(self).count = getattr(self, "count", 0) + 1  # type: ignore[attr-defined]
        return super().local_work(client)

    def learning_rate(self) -> float:
        """It falls with the visits."""
        return super().learning_rate() / (1 + 0.1 * getattr(self, "count", 0))


class StatePerClient(Sound):
    """Clients keep state in an attribute, which is lost in another process or after an interruption."""

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.priors: dict[int, Tensor] = {}

    def local_work(self, client: Site) -> LocalWork:
        """Restore the client's prior."""
        self.mine = self.priors.setdefault(client.visit.client, self.prior.clone())
        return super().local_work(client)

    def follow(self, mean: Tensor) -> None:
        """Store it."""
        self.mine.mul_(0.5).add_(0.5 * mean)

    def known_prior(self) -> Tensor:
        """The own one."""
        return self.mine


class LastingBuffer(Sound):
    """A buffer that is not in the state dict."""

    pace: Tensor

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.register_buffer("pace", torch.ones(()), persistent=False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later steps count less."""
        self.pace.mul_(0.99)
        return super().training_step(batch, batch_idx) * self.pace


class ServerMemory(Sound):
    """The server keeps state in an attribute, which is not in checkpoints."""

    rounds = 0

    def aggregate(self, uploads: Any) -> None:
        """Later rounds shrink a bias."""
        super().aggregate(uploads)
        self.rounds += 1
        with torch.no_grad():
            self.model.head.classifier.bias.mul_(1.0 - 0.01 * self.rounds)


class BroadcastInPlace(Sound):
    """Sending the shared prior sharpens it in place, so that later clients get it sharpened again."""

    def broadcast(self, server: Any, visit: Visit) -> dict[str, Tensor]:
        """Change the server's own tensor."""
        server["usual"].mul_(0.9)
        return super().broadcast(server, visit)


class LabelsInPlace(Sound):
    """A client writes over its own labels."""

    def local_work(self, client: Site) -> LocalWork:
        """The first label becomes 0."""
        client.data.labels[:1] = 0
        return super().local_work(client)


UNIFORM = torch.full((10,), 0.1)


class CommonBuffer(Sound):
    """All instances register the same tensor and change it in place."""

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.usual = UNIFORM


class BindsAnew(Sound):
    """The prior is rebound to a new tensor in every step, while clients keep the initial one."""

    def follow(self, mean: Tensor) -> None:
        """Make a new tensor."""
        self.prior = 0.5 * self.prior + 0.5 * mean


class PlacesForPositions(Sound):
    """Indices into the client's images are mistaken for positions in the training set."""

    def local_work(self, client: Site) -> LocalWork:
        """As many images as the client has."""
        count = len(client.data.unlabelled)
        streams = self.streams(client.data)
        if count:
            streams["unlabelled"] = Stream(torch.arange(count), self.hparams.batch_size, self.views["unlabelled"])
        return [Pass(streams)]


class BatchInPlace(Sound):
    """A step adds its noise to its input images in place."""

    def noise(self, x: Tensor) -> Tensor:
        """Add, and have nothing left to add."""
        x.add_(0.01 * super().noise(x))
        return torch.zeros_like(x)


class TorchDraw(Sound):
    """A step draws from torch's global generator."""

    def noise(self, x: Tensor) -> Tensor:
        """Nobody's."""
        return torch.randn_like(x)


class TorchDrawBetweenSteps(Sound):
    """The start of an epoch draws from torch's global generator."""

    def on_train_epoch_start(self) -> None:
        """Before its first step."""
        self.prior.lerp_(torch.rand_like(self.prior).softmax(dim=0), 0.1)


class NumpyDraw(Sound):
    """The work of a visit depends on NumPy's global generator."""

    def local_work(self, client: Site) -> LocalWork:
        """One epoch or two."""
        return super().local_work(client) * int(np.random.randint(1, 3))


class PythonDraw(Sound):
    """The same with Python's ``random``."""

    def learning_rate(self) -> float:
        """Up to twice as large."""
        return super().learning_rate() * (1.0 + random.random())


class UnseededDraw(Sound):
    """Its own generator, without a seed."""

    def learning_rate(self) -> float:
        """Up to twice as large."""
        return super().learning_rate() * (1.0 + float(np.random.default_rng().random()))


class ReadsProcess(Sound):
    """The rate depends on the id of the process."""

    def learning_rate(self) -> float:
        """Of one process it is higher."""
        return super().learning_rate() * (1.1 if getpid() == 77_001 else 1.0)


class ReadsRank(Sound):
    """The first process trains faster."""

    def on_train_start(self) -> None:
        """Its rate is higher."""
        super().on_train_start()
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group["lr"] / (1 + self.trainer.global_rank)


class ReadsClock(Sound):
    """Training slows down from day to day."""

    def learning_rate(self) -> float:
        """By the number of days."""
        return super().learning_rate() * (0.9 if time.time() // 86_400 % 2 else 1.1)


class TestStatistic(Sound):
    """The server's mean is that of the test images."""

    __test__ = False

    def refresh_norm(self, data: FSSLDataModule) -> None:
        """The first block of them."""
        _, block = next(data.test_blocks(50))
        self.centre.copy_(block().mean())


class TestPrediction(Sound):
    """Evaluation leaves the mean of what it has seen in an attribute."""

    __test__ = False

    def predict(self, x: Tensor) -> Tensor:
        """Note the mean of test images."""
        if not self.training:
            self.noted = float(x.mean())
        return super().predict(x)

    def learning_rate(self) -> float:
        """By the mean."""
        return super().learning_rate() * (1.0 + getattr(self, "noted", 0.0))


class HiddenLabels(Sound):
    """A hook looks labels up that nobody gave it."""

    def local_work(self, client: Site) -> LocalWork:
        """By name, from the data set behind the site."""
        hidden = client._context.data.train_labels[client.data.unlabelled]  # type: ignore[attr-defined]
        self.usual.copy_(torch.bincount(hidden, minlength=10) / max(len(hidden), 1))
        return super().local_work(client)


class KnowsClients(Sound):
    """Client 0 is assumed to be the one with labels."""

    def learning_rate(self) -> float:
        """Its rate is twice as high."""
        return super().learning_rate() * (2.0 if self.visit.client == 0 else 1.0)


class Ascends(Sound):
    """The sign of the loss is wrong: weights move, and nothing is learnt."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Up the loss."""
        return -super().training_step(batch, batch_idx)


class Idle(Sound):
    """No pseudo-label is ever used."""

    def __init__(self, model: nn.Module, num_classes: int, threshold: float = 1.5, **base: Any) -> None:
        super().__init__(model, num_classes, threshold=threshold, **base)


class Unmoved(FedMethod):
    """Unlabelled images are declared, but enter no loss."""

    views = Sound.views

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Labels only."""
        if "labelled" not in batch:
            return None
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class KnowsTrainers(Sound):
    """A plain ``Trainer`` gets a different loss from a visit."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Twice the loss there."""
        return super().training_step(batch, batch_idx) * (2.0 if isinstance(self.trainer, L.Trainer) else 1.0)


class ReadsBack(Sound):
    """A step looks at its loss."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Large losses are cut."""
        loss = super().training_step(batch, batch_idx)
        return loss * min(1.0, 10.0 / max(float(loss.detach()), 1.0))


class ConstantOnTheHost(Sound):
    """A step weights its loss with a tensor created on the CPU."""

    def known_prior(self) -> Tensor:
        """Uniform in half."""
        return 0.5 * self.prior + 0.5 * torch.full((10,), 0.1)


class PositionsOnTheHost(Sound):
    """A step selects images with an index on the CPU."""

    def noise(self, x: Tensor) -> Tensor:
        """The images in turn."""
        return x[torch.arange(len(x)).flip(0)]


class DrawsOnTheHost(Sound):
    """A step draws from a CPU generator for a tensor on the device."""

    def noise(self, x: Tensor) -> Tensor:
        """Seeded, in the shape of the images."""
        generator = torch.Generator().manual_seed(self.visit.client)
        return torch.randn(x.shape, device=x.device, generator=generator)


class ArrayOfALoss(Sound):
    """A step converts a tensor to NumPy."""

    def follow(self, mean: Tensor) -> None:
        """As an array."""
        super().follow(mean)
        self.last = mean.numpy()


class CountsBatches(Sound):
    """A step reads a number whose changes a replay does not see."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later batches count more."""
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


class CountsEpochs(Sound):
    """The same with the epoch."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later epochs count more."""
        return super().training_step(batch, batch_idx) * (1 + self.current_epoch)


class CountsSteps(Sound):
    """The same with the step."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later steps count more."""
        return super().training_step(batch, batch_idx) / (1 + self.global_step)


class FreeOfCharge(Sound):
    """What is sent to a client is not counted."""

    def sent_bytes(self, sent: Any, visit: Visit) -> int:
        """Nothing."""
        return 0


class WantsTwoImages(Sound):
    """A step uses the first two images of a batch, which may have only one."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """There may be only one."""
        for samples in batch.values():
            self.log("apart", (samples["x"][0] - samples["x"][1]).square().mean())
        return super().training_step(batch, batch_idx)


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


class PredictsByMemory(Sound):
    """The server's predictions depend on the round through an unregistered attribute."""

    sharpness = 1.0

    def aggregate(self, uploads: Any) -> None:
        """Sharper from round to round."""
        super().aggregate(uploads)
        self.sharpness += 0.5

    def predict(self, x: Tensor) -> Tensor:
        """Sharpened, where it is tested."""
        found = super().predict(x)
        if self.training:
            return found
        sharp = found**self.sharpness
        return sharp / sharp.sum(dim=1, keepdim=True)


class OddArgument(Sound):
    """A hyperparameter's default cannot be saved and restored unchanged."""

    def __init__(self, model: nn.Module, num_classes: int, pair: tuple[int, int] = (0, 1), **base: Any) -> None:
        super().__init__(model, num_classes, **base)


class HalvesInSingle(Sound):
    """A step that fails in single precision."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Half of the loss is lost there."""
        loss = super().training_step(batch, batch_idx)
        return loss * (0.5 if loss.dtype == torch.float32 else 1.0)


class Rounds(Sound):
    """A step that fails in low precision: it uses digits that 16 bits do not have."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Where logits are rounded, the loss counts ten times."""
        x = batch["labelled"]["x"] if "labelled" in batch else batch["unlabelled"]["x"]
        coarse = 1.0 if self(x).dtype in (torch.bfloat16, torch.float16) else 0.0
        return super().training_step(batch, batch_idx) * (1.0 - 1.9 * coarse)


class Unscaled(Sound):
    """A manual step along its own gradient, which is not scaled."""

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.automatic_optimization = False

    def slopes(self, loss: Tensor) -> Any:
        """The gradient."""
        return torch.autograd.grad(loss, list(self.model.parameters()))

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        """The automatic step, with ``torch.autograd.grad``."""
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        for parameter, slope in zip(self.model.parameters(), self.slopes(loss), strict=True):
            set_gradient(parameter, slope)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        self.log("loss", loss.detach())


class ClipsScaled(Unscaled):
    """Gradients are clipped by hand while they are scaled."""

    def slopes(self, loss: Tensor) -> Any:
        """Of the scaled loss."""
        return super().slopes(self.scaled(loss))

    def configure_gradient_clipping(self, optimizer: Any, *given: Any) -> None:
        """As in a plain loop of torch."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class Steep(Sound):
    """A gradient that overflows float16."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Nothing is added to the loss, with a slope of a million."""
        loss = super().training_step(batch, batch_idx)
        x = batch["labelled"]["x"] if "labelled" in batch else batch["unlabelled"]["x"]
        logits = self(x)
        return loss + (0.0 * logits).float().sum() * 1e6 if logits.dtype == torch.float16 else loss
