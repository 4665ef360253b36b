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

LABELLED_BATCH, BATCH = 10, 2048


class StaticNorms(FedMethod):
    """Compute the statistics of static batch norm on images of the federation (SemiFL, (FL)2: "sBN").

    They are the labelled images, in batches of 10, then the pool of all clients in stored order, in batches of 2048. It
    costs nothing for networks without static norms.
    """

    retired = {"sbn_scope": "all", "sbn_order": "class_sorted", "sbn_batch": BATCH}

    @torch.no_grad()
    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Compute the statistics for this round's evaluation and the next round's pseudo-labels."""
        with self.autocast():
            reestimate(self.model, self.norm_batches(data), view=partial(data.take, "test"), spread=self.spread)

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of the images used for the statistics, batch by batch."""
        yield from batches(all_labelled(data), LABELLED_BATCH)
        yield from batches(data.pool(), BATCH)


class NormChoices(StaticNorms):
    """Static batch norm with the choices that repositories and papers differ in.

    Args:
        model: the network.
        sbn_scope: images used: the labelled images and the pool of ``all`` clients, or those of the round's ``active``
            clients, one client after the other.
        sbn_order: ``class_sorted``: see ``StaticNorms``; ``dataset``: one stream, the labelled images first, then the
            pool in the order of the data set.
        sbn_batch: images per batch.
    """

    def __init__(
        self,
        model: nn.Module,
        sbn_scope: Literal["all", "active"] = "all",
        sbn_order: Literal["class_sorted", "dataset"] = "class_sorted",
        sbn_batch: int = BATCH,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.active: list[int] | None = None

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Draw as the roster does, and store the draw for the norm statistics."""
        cohorts = super().select_clients(round, roster)
        self.active = sorted(set().union(*cohorts))
        return cohorts

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of the images that ``sbn_*`` name, batch by batch."""
        h = self.hparams
        if h.sbn_scope == "active" and self.active:
            clients = [data.client(k) for k in self.active]
            parts = [(torch.cat([client.labelled, client.unlabelled]), h.sbn_batch) for client in clients]
        elif h.sbn_order == "dataset":
            parts = [(torch.cat([all_labelled(data), data.pool().sort().values]), h.sbn_batch)]
        else:
            parts = [(all_labelled(data), LABELLED_BATCH), (data.pool(), h.sbn_batch)]
        for index, size in parts:
            yield from batches(index, size)


def all_labelled(data: FSSLDataModule) -> Tensor:
    """Positions of the labelled images of the server and of all clients."""
    return torch.cat([data.server.labelled, *(data.client(k).labelled for k in range(data.num_clients))])


def batches(index: Tensor, size: int) -> Iterator[Tensor]:
    """Yield the parts of an index of this size; the last one may be smaller."""
    return (batch for batch in torch.split(index, size) if len(batch))
