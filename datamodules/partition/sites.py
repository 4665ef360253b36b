"""The data of clients and the server, and true labels for metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from datamodules.partition.lists import Lists


@dataclass(frozen=True)
class SiteData:
    """The data of one client (or the server): positions in the training set, and labels if any.

    Args:
        labelled: int64 ``[n_l]`` positions with labels.
        labels: int64 ``[n_l]`` classes of ``labelled``.
        unlabelled: int64 ``[n_u]`` positions without labels.
        revealed: int64 ``[n_u]`` classes of ``unlabelled``, in settings that reveal them (an upper bound).
    """

    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    revealed: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of images."""
        return len(self.labelled) + len(self.unlabelled)


class Sites(Sequence[SiteData]):
    """The data of every client, created on access, so that clients that do not take part cost nothing.

    Args:
        labelled: positions with labels, by client.
        unlabelled: positions without labels, by client.
        make: creates a site from both (int64 tensors).
        device: device of these tensors.
    """

    def __init__(
        self, labelled: Lists, unlabelled: Lists, make: Callable[[Tensor, Tensor], SiteData], device: torch.device
    ) -> None:
        self._labelled, self._unlabelled, self._make = labelled, unlabelled, make
        self._with, self._without = (torch.tensor(lists.flat, device=device) for lists in (labelled, unlabelled))
        self._others: dict[int, SiteData] = {}

    def __len__(self) -> int:
        return len(self._labelled)

    def __getitem__(self, client: int) -> SiteData:  # type: ignore[override]
        k = range(len(self))[client]
        if k in self._others:
            return self._others[k]
        ends = (slice(*lists.starts[k : k + 2].tolist()) for lists in (self._labelled, self._unlabelled))
        return self._make(self._with[next(ends)], self._without[next(ends)])

    def __setitem__(self, client: int, site: SiteData) -> None:
        """From now on the client holds something else. For checks and tests."""
        self._others[range(len(self))[client]] = site

    def labelled(self) -> tuple[int, ...]:
        """Ids of the clients that hold labels, ascending."""
        held = self._labelled.lengths > 0
        for client in self._others:
            held[client] = len(self._others[client].labelled) > 0
        return tuple(np.flatnonzero(held).tolist())


HIDDEN = -1
"""Stands for a label that no site has, or that nobody knows."""

_TRUE: WeakKeyDictionary[object, Tensor] = WeakKeyDictionary()


def keep_true_labels(data: object, labels: Tensor) -> None:
    """Keep the labels of a data module for ``true_labels``."""
    _TRUE[data] = labels


def true_labels(data: object) -> Tensor:
    """All training labels of a data module that is set up, hidden ones too, int64 ``[num_images]``.

    ``HIDDEN`` stands for those that nobody knows.

    For metrics and records; no method may call it. The labels lie beside the data module, so that no attribute of what
    a method is given leads to them.
    """
    return _TRUE[data]
