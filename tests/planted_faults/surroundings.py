"""Faults of isolation: what a method reads or draws although nobody gave it."""

import random
import time
from collections.abc import Sequence
from os import getpid
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from datamodules.base import FSSLDataModule
from methods.base import FedMethod, LocalWork, Pass, Site, Stream, Upload
from planted_faults.sound import Sound


class TorchDraw(Sound):
    """A step draws from torch's global generator."""

    def noise(self, x: Tensor) -> Tensor:
        """Nobody's."""
        return torch.randn_like(x)


class NumpyDraw(Sound):
    """The average depends on NumPy's global generator."""

    def weights(self, uploads: Sequence[Upload]) -> list[float]:
        """Sizes, more or less."""
        return [weight * float(np.random.uniform(0.9, 1.1)) for weight in super().weights(uploads)]

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """The framework's average."""
        FedMethod.aggregate(self, uploads)


class TorchDrawOfGradients(Sound):
    """Gradients get noise from torch's global generator before the optimiser's step."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """A little of it."""
        for value in self.model.parameters():
            if value.grad is not None:
                value.grad.add_(1e-3 * torch.randn_like(value))


class PythonDraw(Sound):
    """The rate depends on Python's ``random``."""

    def learning_rate(self) -> float:
        """Up to twice as large."""
        return super().learning_rate() * (1.0 + random.random())


class UnseededDraw(Sound):
    """Its own generator, without a seed."""

    def learning_rate(self) -> float:
        """Up to twice as large."""
        return super().learning_rate() * (1.0 + float(np.random.default_rng().random()))


class ReadsProcess(Sound):
    """The rate depends on the id of the process in which the method is made."""

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.faster = getpid() == 77_001

    def learning_rate(self) -> float:
        """Of one process it is higher."""
        return super().learning_rate() * (1.1 if self.faster else 1.0)


class ReadsRank(Sound):
    """The first process trains faster."""

    def on_train_start(self) -> None:
        """Its rate is higher."""
        super().on_train_start()
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group["lr"] / (1 + self.trainer.global_rank)


STARTED = time.time()


class ReadsClock(Sound):
    """Training slows down from day to day."""

    def learning_rate(self) -> float:
        """By the number of half days."""
        return super().learning_rate() * 0.9 ** ((time.time() - STARTED) // 43_200)


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


class KnowsClients(Sound):
    """Client 0 is assumed to be the one with labels."""

    def learning_rate(self) -> float:
        """Its rate is twice as high."""
        return super().learning_rate() * (2.0 if self.visit.client == 0 else 1.0)


class PlacesForPositions(Sound):
    """Indices into the client's images are mistaken for positions in the training set."""

    def local_work(self, client: Site) -> LocalWork:
        """As many images as the client has."""
        count = len(client.data.unlabelled)
        streams = self.streams(client.data)
        if count:
            streams["unlabelled"] = Stream(torch.arange(count), self.hparams.batch_size, self.views["unlabelled"])
        return [Pass(streams)]
