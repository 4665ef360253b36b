"""The server of SemiFL, (FL)2 and FedDB: it trains on labels, measures batch statistics and takes momentum steps."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from math import cos, pi
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from datamodules.base import FSSLDataModule, Scenario, SiteData
from datamodules.common.errors import ConfigError
from methods.base import FedMethod, Pass, Site, Stream, Upload
from methods.models.norm import reestimate
from methods.parts.aggregation import weighted_mean

LABELLED_BATCH, POOL_BATCH, STREAM_BATCH = 10, 2048, 250


class RoundSchedule(FedMethod):
    """One rate per round, the same at the server and at the clients.

    Args:
        model: the network.
        lr_schedule: ``cosine``: ``lr (1 + cos(pi r / T)) / 2`` in 0-based round r of T; or ``constant``.
        nesterov: Nesterov momentum.
        clip_norm: total gradient norm allowed before weight decay is added; ``None`` never clips.
        local_epochs: passes over a client's data per visit.
    """

    def __init__(
        self,
        model: nn.Module,
        lr_schedule: Literal["cosine", "constant"] = "cosine",
        nesterov: bool = True,
        clip_norm: float | None = 1.0,
        local_epochs: int = 5,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)

    def learning_rate(self) -> float:
        """Return the rate of the visit's round."""
        return self.scheduled(float(self.hparams.lr))

    def scheduled(self, rate: float) -> float:
        """Apply ``lr_schedule`` to a rate in the visit's round."""
        if self.hparams.lr_schedule == "constant":
            return rate
        return 0.5 * rate * (1.0 + cos(pi * self.visit.round / self.visit.rounds))


class ServerMomentum(RoundSchedule):
    """Aggregation with server momentum, and a learning-rate schedule over rounds (SemiFL, (FL)2, FedDB).

    ``M <- momentum M + (W - mean)``, ``W <- W - M``: SGD with rate 1 on the clients' average displacement from the
    global model W that they started from. M is 0 at first. Buffers are averaged.

    Args:
        model: the network.
        server_momentum: momentum of M; 0: plain average.
    """

    scopes = {"velocity": "server"}
    uploads_needed = "mean"
    retired = {"aggregation": "uniform"}

    def __init__(self, model: nn.Module, server_momentum: float = 0.5, **base: Any) -> None:
        super().__init__(model, **base)
        self.velocity = copy.deepcopy(model).requires_grad_(False)
        for value in self.velocity.parameters():
            nn.init.zeros_(value)

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Weigh all clients that return an upload alike."""
        return [1.0] * len(uploads)

    @torch.no_grad()
    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average, then apply the server's momentum; tensors that no client returned stay unchanged."""
        mean = weighted_mean([upload.tensors for upload in uploads], self.weights(uploads))
        if momentum := self.hparams.server_momentum:
            for name, m in self.velocity.named_parameters():
                if f"model.{name}" in mean:
                    w, w_mean = self.model.get_parameter(name), mean[f"model.{name}"]
                    mean[f"velocity.{name}"] = momentum * m + (w - w_mean)
                    mean[f"model.{name}"] = w - mean[f"velocity.{name}"]
        self.load_tensors(mean)


class StaticNorms(FedMethod):
    """Compute the statistics of static batch norm on images of the federation (SemiFL, (FL)2: "sBN").

    They are the labelled images, in batches of 10, then the pool of all clients in stored order, in batches of 2048. It
    costs nothing for networks without static norms.
    """

    retired = {"sbn_scope": "all", "sbn_order": "class_sorted", "sbn_batch": POOL_BATCH}

    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Compute the statistics for this round's evaluation and the next round's pseudo-labels."""
        with self.autocast():
            reestimate(self.model, self.norm_batches(data), view=partial(data.take, "test"), spread=self.spread)

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of the images used for the statistics, batch by batch."""
        yield from batches(all_labelled(data), LABELLED_BATCH)
        yield from batches(data.pool(), POOL_BATCH)


class OneStream(StaticNorms):
    """Compute the statistics of static batch norm on one stream of images, in batches of 250 (SemiFL, released code).

    The labelled images come first, then the pool of all clients in the order of the data set.
    """

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of the images used for the statistics, batch by batch."""
        yield from batches(torch.cat([all_labelled(data), data.pool().sort().values]), STREAM_BATCH)


class LabelsAtServer(StaticNorms):
    """Fine-tune the global model on the server's labels, if any, in every round (SemiFL, (FL)2).

    Args:
        model: the network.
        server_epochs: passes over the server's labels per round, with weak views and mean cross-entropy.
        server_batch_size: samples per step at the server.
        server_pretrain: how often this routine runs before the first round (with the same optimiser state).
    """

    scenario: ClassVar[Scenario] = "server"

    needs_labels: ClassVar[bool] = False
    """Whether the server must hold labels, as the clients use none."""

    def __init__(
        self,
        model: nn.Module,
        server_epochs: int = 5,
        server_batch_size: int = 10,
        server_pretrain: int = 0,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)

    def server_step(self, server: Site) -> None:
        """Fine-tune on the server's labels, if any; before the first round ``server_pretrain`` times.

        Raises:
            ConfigError: ``needs_labels``, and the server has none.
        """
        if not len(server.data.labelled):
            if self.needs_labels:
                raise ConfigError("the server has no labels to train on; set data.scenario=server and data.num_labels")
            return
        work = [Pass({"labelled": self.server_stream(server.data)})] * self.hparams.server_epochs
        for _ in range(self.hparams.server_pretrain if server.visit.before_first_round else 1):
            server.fit(work)

    def server_stream(self, data: SiteData) -> Stream:
        """Return the server's labelled images in batches of ``server_batch_size``."""
        h, fields = self.hparams, {"y": data.labels}
        return Stream(data.labelled, h.server_batch_size, self.views["labelled"], fields, min_batch=h.min_batch)


def all_labelled(data: FSSLDataModule) -> Tensor:
    """Positions of the labelled images of the server and of all clients."""
    return torch.cat([data.server.labelled, *(data.client(k).labelled for k in range(data.num_clients))])


def batches(index: Tensor, size: int) -> Iterator[Tensor]:
    """Yield the parts of an index of this size; the last one may be smaller."""
    return (batch for batch in torch.split(index, size) if len(batch))
