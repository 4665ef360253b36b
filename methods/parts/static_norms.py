"""Batch-norm statistics that the server recomputes after every round, for networks with ``norm=static``."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from datamodules.base import FSSLDataModule
from datamodules.partition.roster import Roster
from methods.base import FedMethod
from methods.models.norm import reestimate

LABELLED_BATCH = 10


class StaticNorms(FedMethod):
    """Compute the statistics of static batch norm on images of the federation (SemiFL, (FL)2: "sBN").

    It costs nothing for networks without static norms.

    Args:
        model: the network.
        sbn_scope: images used: the labelled images and the pool of ``all`` clients, or those of the round's ``active``
            clients, one client after the other.
        sbn_order: ``class_sorted``: the labelled images in batches of 10, then the pool in stored order; ``dataset``:
            one stream, the labelled images first, then the pool in the order of the data set.
        sbn_batch: images per batch.
    """

    def __init__(
        self,
        model: nn.Module,
        sbn_scope: Literal["all", "active"] = "all",
        sbn_order: Literal["class_sorted", "dataset"] = "class_sorted",
        sbn_batch: int = 2048,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require("from 1", sbn_batch=sbn_batch >= 1)
        self.active: list[int] | None = None

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Draw as the roster does, and store the draw for the norm statistics."""
        cohorts = super().select_clients(round, roster)
        self.active = sorted(set().union(*cohorts))
        return cohorts

    @torch.no_grad()
    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Compute the statistics for this round's evaluation and the next round's pseudo-labels."""
        with self.autocast():
            reestimate(self.model, self.norm_batches(data), view=partial(data.take, "test"), spread=self.spread)

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of the images used for the statistics (``sbn_*``), batch by batch."""
        h, clients = self.hparams, [data.client(k) for k in range(data.num_clients)]
        labelled, pool = torch.cat([data.server.labelled, *(c.labelled for c in clients)]), data.pool()
        if h.sbn_scope == "active" and self.active:
            parts = [(torch.cat([clients[k].labelled, clients[k].unlabelled]), h.sbn_batch) for k in self.active]
        elif h.sbn_order == "dataset":
            parts = [(torch.cat([labelled, pool.sort().values]), h.sbn_batch)]
        else:
            parts = [(labelled, LABELLED_BATCH), (pool, h.sbn_batch)]
        for index, size in parts:
            yield from (batch for batch in torch.split(index, size) if len(batch))
