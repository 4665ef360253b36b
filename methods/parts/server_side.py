"""What methods share whose server does more than average: its own optimiser, labels and norm statistics."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import cos, pi
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from datamodules.base import FSSLDataModule, Scenario, SiteData
from datamodules.common import streams as random_streams
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, Pass, Site, Stream, Upload
from methods.models.norm import Weighting, reestimate
from methods.parts.aggregation import weighted_mean

State = Mapping[str, Tensor]


def momentum_step(
    sent: State, mean: State, velocity: State, momentum: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """``M <- momentum M + (W - mean)``, ``W <- W - M``: SGD of rate 1 on the clients' common displacement.

    Args:
        sent: the global model W that the clients started from, by name.
        mean: the weighted mean of what they returned.
        velocity: M; zeros before the first aggregation.
        momentum: 0 gives the mean itself, up to rounding.

    Returns:
        the new W and the new M.
    """
    pace = {name: momentum * velocity[name] + (sent[name] - mean[name]) for name in sent}
    return {name: sent[name] - pace[name] for name in sent}, pace


def resting_copy(model: nn.Module) -> nn.Module:
    """A copy of the network whose parameters are 0 and frozen: a velocity before the first step."""
    copied = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for value in copied.parameters():
            value.zero_()
    return copied


class ServerMomentum(FedMethod, ABC):
    """Aggregation with momentum at the server, and a learning rate that follows the rounds (SemiFL, (FL)2, FedDB).

    Args:
        model: the network.
        lr_schedule: ``cosine``: ``lr (1 + cos(pi r / T)) / 2`` in the 0-based round r of T, at the server
            and at the clients; or ``constant``.
        server_momentum: momentum of ``momentum_step``; it acts on parameters, buffers are averaged. 0 averages.
        aggregation: ``uniform`` over the clients that return something, or by ``size``.
        momentum: momentum of SGD.
        nesterov: Nesterov momentum.
        clip_norm: total gradient norm allowed before weight decay is added; ``None`` never clips.
        local_epochs: passes over a client's data per visit.
    """

    scopes = {"velocity": "server"}

    def __init__(
        self,
        model: nn.Module,
        lr_schedule: Literal["cosine", "constant"] = "cosine",
        server_momentum: float = 0.5,
        aggregation: Literal["uniform", "size"] = "uniform",
        momentum: float = 0.9,
        nesterov: bool = True,
        clip_norm: float | None = 1.0,
        local_epochs: int = 5,
        **base: Any,
    ) -> None:
        super().__init__(
            model, momentum=momentum, nesterov=nesterov, clip_norm=clip_norm, local_epochs=local_epochs, **base
        )
        self.require("0 or more and below 1", server_momentum=0 <= server_momentum < 1)
        self.velocity = resting_copy(model)

    @abstractmethod
    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """See ``FedMethod``."""

    def learning_rate(self) -> float:
        """Rate of the visit's round."""
        return self.scheduled(float(self.hparams["lr"]))

    def scheduled(self, rate: float) -> float:
        """What ``lr_schedule`` makes of a rate in the visit's round."""
        if self.hparams["lr_schedule"] == "constant":
            return rate
        return 0.5 * rate * (1.0 + cos(pi * self.visit.round / self.visit.rounds))

    def weights(self, uploads: Sequence[Upload]) -> list[float]:
        """Aggregation weights of the uploads; they need not sum to 1."""
        return [u.weight if self.hparams["aggregation"] == "size" else 1.0 for u in uploads]

    @torch.no_grad()
    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average, then move the global model by the server's momentum; what nobody returned stays as it is."""
        mean = weighted_mean([u.tensors for u in uploads], self.weights(uploads))
        if self.hparams["server_momentum"]:
            sent = {name: p for name, p in self.model.named_parameters() if f"model.{name}" in mean}
            average = {name: mean[f"model.{name}"] for name in sent}
            velocity = dict(self.velocity.named_parameters())
            moved, pace = momentum_step(sent, average, velocity, self.hparams["server_momentum"])
            mean |= {f"model.{name}": value for name, value in moved.items()}
            mean |= {f"velocity.{name}": value for name, value in pace.items()}
        self.load_tensors(mean)


class LabelsAtServer(ServerMomentum):
    """A server that trains on labels after every aggregation, then measures static batch-norm statistics.

    Args:
        model: the network.
        server_epochs: passes over the server's labels per round, weak view, mean cross-entropy.
        server_batch_size: samples per step of them.
        server_pretrain: how often that routine runs before the first round (the same optimiser state).
        sbn_scope: whose images the statistics come from: the ``server``'s, those of the round's ``active`` clients, one
            client after the other, or the labelled images and then the pool of ``all`` clients.
        sbn_order: order of the pool: ``class_sorted`` as stored, ``dataset``, or ``shuffled`` anew each time.
        sbn_weighting: see ``methods.models.norm.reestimate``.
        sbn_batch: images per batch of the pool.
        sbn_labelled_batch: images per batch of the labelled ones; ``None``: they head the pool's own batches.
    """

    scenario: ClassVar[Scenario] = "server"

    def __init__(
        self,
        model: nn.Module,
        server_epochs: int = 5,
        server_batch_size: int = 10,
        server_pretrain: int = 0,
        sbn_scope: Literal["all", "active", "server"] = "all",
        sbn_order: Literal["class_sorted", "dataset", "shuffled"] = "class_sorted",
        sbn_weighting: Weighting = "per_batch",
        sbn_batch: int = 2048,
        sbn_labelled_batch: int | None = 10,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require("from 0", server_pretrain=server_pretrain >= 0)
        self.require("from 1", server_batch_size=server_batch_size >= 1, sbn_batch=sbn_batch >= 1)
        self.require("from 1, or null", sbn_labelled_batch=sbn_labelled_batch is None or sbn_labelled_batch >= 1)
        self.active: list[int] | None = None

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """The roster's draw, remembered for the norm statistics."""
        cohorts = super().select_clients(round, roster)
        self.active = sorted(set().union(*cohorts))
        return cohorts

    def server_step(self, server: Site) -> None:
        """Fine-tune on the server's labels, where it has any; before the first round as often as pre-training says."""
        if not len(server.data.labelled):
            return
        work = [Pass({"labelled": self.server_stream(server.data)})] * self.hparams.server_epochs
        for _ in range(self.hparams.server_pretrain if server.visit.before_first_round else 1):
            server.fit(work)

    def server_stream(self, data: SiteData) -> Stream:
        """The server's labelled images, in batches of ``server_batch_size``."""
        h, fields = self.hparams, {"y": data.labels}
        return Stream(data.labelled, h.server_batch_size, self.views["labelled"], fields, min_batch=h.min_batch)

    @torch.no_grad()
    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Measure the statistics of static batch norm for this round's test and the next round's pseudo-labels."""
        with self.autocast():
            view = partial(data.take, "test")
            reestimate(self.model, self.norm_batches(data), self.hparams["sbn_weighting"], view, self.spread)

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Positions of the images that the statistics come from (``sbn_*``), batch by batch."""
        h, clients = self.hparams, [data.client(k) for k in range(data.num_clients)]
        labelled, pool = torch.cat([data.server.labelled, *(c.labelled for c in clients)]), data.pool()
        if h["sbn_order"] == "dataset":
            pool = pool.sort().values
        elif h["sbn_order"] == "shuffled":
            generator = random_streams.generator(data.partition_seed, "norm", self.visit.round, self.visit.repeat)
            pool = pool[torch.randperm(len(pool), generator=generator).to(pool.device)]
        size = h["sbn_batch"]
        if h["sbn_scope"] == "active" and self.active:
            parts = [(torch.cat([clients[k].labelled, clients[k].unlabelled]), size) for k in self.active]
        elif h["sbn_labelled_batch"] is None:
            parts = [(labelled if h["sbn_scope"] == "server" else torch.cat([labelled, pool]), size)]
        else:
            parts = [(labelled, h["sbn_labelled_batch"]), (pool[:0] if h["sbn_scope"] == "server" else pool, size)]
        for index, block in parts:
            for part in torch.split(index, block):
                if len(part):
                    yield part
