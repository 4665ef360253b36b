"""The data of clients and the server, and true labels for metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from datamodules.partition.lists import Lists

HIDDEN = -1
"""Stands for a label that no site has, or that nobody knows."""


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
        labels: the labels that sites may see, else ``HIDDEN``, int64 ``[num_images]``; on the sites' device.
        reveals: whether clients see those of their unlabelled images.
    """

    def __init__(self, labelled: Lists, unlabelled: Lists, labels: Tensor, reveals: bool) -> None:
        self._labelled, self._unlabelled, self._labels, self._reveals = labelled, unlabelled, labels, reveals
        self._labelled_flat = torch.tensor(labelled.flat, device=labels.device)
        self._unlabelled_flat = torch.tensor(unlabelled.flat, device=labels.device)
        self._replaced: dict[int, SiteData] = {}

    def __len__(self) -> int:
        return len(self._labelled)

    def __getitem__(self, client: int) -> SiteData:  # type: ignore[override]
        k = range(len(self))[client]
        if k in self._replaced:
            return self._replaced[k]
        labelled = self._labelled_flat[slice(*self._labelled.starts[k : k + 2].tolist())]
        unlabelled = self._unlabelled_flat[slice(*self._unlabelled.starts[k : k + 2].tolist())]
        revealed = self._labels[unlabelled] if self._reveals else None
        return SiteData(labelled, self._labels[labelled], unlabelled, revealed)

    def __setitem__(self, client: int, site: SiteData) -> None:
        """From now on the client holds something else. For checks and tests."""
        self._replaced[range(len(self))[client]] = site

    def labelled(self) -> tuple[int, ...]:
        """Ids of the clients that hold labels, ascending."""
        held = self._labelled.lengths > 0
        for client, site in self._replaced.items():
            held[client] = len(site.labelled) > 0
        return tuple(np.flatnonzero(held).tolist())


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
