"""The objects that a method's hooks get: the visit, the site with its data, and the upload."""

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
        round: 0-based round index.
        client: client id, or ``SERVER``.
        cohort: index of the cohort of this round that the client was drawn for.
        repeat: number of earlier visits of the client in this round; 1 for the server before the first round.
        labelled: whether the site holds labels.
        size: number of the site's training images; those that are labelled and unlabelled count twice.
        first: whether the client takes part for the first time in the run.
        rounds: planned number of rounds of the run, for schedules.
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
    def at_server(self) -> bool:
        """Whether this is a visit of the server."""
        return self.client == SERVER

    @property
    def before_first_round(self) -> bool:
        """Whether this is the server's visit before the first round."""
        return self.at_server and self.repeat > 0


@dataclass
class Upload:
    """A client's upload: its shared tensors, and statistics for the server.

    Args:
        visit: the visit that ends with this upload.
        tensors: tensors by name.
        weight: the client's weight in an average by size.
        stats: further tensors by name.
        bytes: bytes sent (an integer), if fewer than the tensors' sizes (sparse updates).
    """

    visit: Visit
    tensors: dict[str, Tensor]
    weight: float
    stats: dict[str, Tensor] = field(default_factory=dict)
    bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        """Number of bytes sent to the server."""
        return num_bytes(self.tensors) + num_bytes(self.stats) if self.bytes is None else self.bytes


class Site(Protocol):
    """The client or server where a hook runs: its data, random streams and a way to train."""

    data: SiteData
    visit: Visit

    def generator(self, purpose: str) -> torch.Generator:
        """Return this visit's random stream for ``purpose``, on the data's device (``order/...``: on the CPU)."""

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = 256) -> Iterable[Tensor]:
        """Yield float views of the site's training images at ``index``, in order and in blocks of ``size``.

        Raises:
            RunError: at the end of the visit, if an image is not the site's; likewise for those of a ``Stream``.
        """

    def fit(self, work: LocalWork) -> int:
        """Train the module in a hook of the server; returns the number of steps."""

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """Log the quality of pseudo-labels; only this metric sees the hidden labels, and no hook can read it back.

        Logged as shares of all given pseudo-labels: ``pseudo/selected``, ``pseudo/correct`` (selected and correct) and
        ``pseudo/right`` (correct, selected or not); each also split by class (as labelled), ``..._by_class``. The first
        alone if the data set lacks labels.
        """

    def oracle(self, index: Tensor, labels: Tensor) -> Tensor:
        """Whether ``labels`` are the true classes of the images at ``index``; for declared oracles only.

        Raises:
            RunError: the method does not declare ``uses_oracle``, or the data set lacks labels.
        """
