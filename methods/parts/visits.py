"""A client's visit as the hooks of a method see it: when and where it is, what is there, and what goes back."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from datamodules.base import SiteData
from datamodules.common.streams import SERVER
from datamodules.views.batches import LocalWork
from methods.parts.aggregation import num_bytes


@dataclass(frozen=True)
class Visit:
    """One participation of one client (or of the server) in one round.

    Args:
        round: 0-based round.
        client: client id, or ``SERVER``.
        cohort: index of the cohort of this round that the client was drawn for.
        repeat: how often the client has already been visited in this round; for the server 1 before the first round.
        labelled: whether the site holds labels.
        size: number of the site's training images.
        first: whether the client takes part for the first time in the run.
        rounds: planned number of rounds of the run (for schedules).
    """

    round: int = 0
    client: int = 0
    cohort: int = 0
    repeat: int = 0
    labelled: bool = True
    size: int = 0
    first: bool = True
    rounds: int = 1

    @property
    def before_first_round(self) -> bool:
        """Whether the server works before any client has."""
        return self.client == SERVER and self.repeat > 0


@dataclass
class Upload:
    """What a client sends back: its shared tensors, and statistics that the server may add up.

    Args:
        visit: the visit that it ends.
        tensors: tensors by name.
        weight: the client's weight in an average over sizes.
        stats: further tensors by name.
        bytes: what sending takes, a whole number, where that is less than the tensors' sizes (sparse updates).
    """

    visit: Visit
    tensors: dict[str, Tensor]
    weight: float
    stats: dict[str, Tensor] = field(default_factory=dict)
    bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes on the way to the server."""
        return num_bytes(self.tensors) + num_bytes(self.stats) if self.bytes is None else self.bytes


class Site(Protocol):
    """What the hooks see of the place where they run: its data, random streams and a way to train there."""

    data: SiteData
    visit: Visit

    def generator(self, purpose: str) -> torch.Generator:
        """Random stream of this visit for ``purpose``, on the data's device (``order/...``: on the CPU)."""

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = 256) -> Iterable[Tensor]:
        """Float views of the site's own training images at ``index``, in order and in blocks of ``size``.

        Raises:
            RunError: an image is not the site's. The positions of a ``Stream`` are looked at likewise.
        """

    def fit(self, work: LocalWork) -> int:
        """Train the module as it stands, for hooks of the server; returns the number of steps taken."""

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """Log how good pseudo-labels are; only this metric sees the hidden labels, and no hook can read it back.

        Shares of all pseudo-labels given: ``pseudo/selected``, and of these the right ones, ``pseudo/correct``; the
        right ones, selected or not, ``pseudo/right``; of each also the part that every class (as labelled) has,
        ``..._by_class``.
        """

    def oracle(self, index: Tensor, labels: Tensor) -> Tensor:
        """Whether ``labels`` are the true classes of the images at ``index``: for declared oracles only.

        Raises:
            RunError: the method does not say ``uses_oracle``.
        """
