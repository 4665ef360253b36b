"""Which client holds which training samples and labels: `Partition`, and the lists that clients train on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from datamodules.common.errors import DataError
from datamodules.partition.lists import Lists, Positions
from datamodules.partition.sites import HIDDEN

Role = Literal["labelled", "unlabelled", "all"]
Union = Literal["none", "labelled", "code_index"]
Repeats = Literal["none", "second_class"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Training-set positions (int64, read-only) of every client and of the server.

    ``labelled[k]`` and ``unlabelled[k]`` belong to client k (any sequences are converted to ``Lists``), ``server``
    holds the server's labelled samples, and ``pool`` is the whole unlabelled pool in stored order, including samples
    that no client received. ``labelled_pool`` is the same for labelled samples that were drawn as one pool and then
    spread over the clients; it does not assign samples and is not part of the hash.
    """

    labelled: Sequence[Positions]
    unlabelled: Sequence[Positions]
    server: Positions
    pool: Positions
    labelled_pool: Positions | None = None

    def __post_init__(self) -> None:
        for field in ("labelled", "unlabelled"):
            object.__setattr__(self, field, Lists.of(getattr(self, field)))
        for field in ("server", "pool", "labelled_pool"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, Lists.of([getattr(self, field)])[0])

    @property
    def num_clients(self) -> int:
        """Number of clients, including those without any sample."""
        return len(self.labelled)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content: number of clients, each list's length and values, little-endian int64."""
        digest = hashlib.sha256(b"fssl-bench partition 1")
        digest.update(np.array(self.num_clients, dtype="<i8").tobytes())
        for parts in map(Lists.of, (self.labelled, self.unlabelled, [self.server], [self.pool])):
            digest.update(np.insert(parts.flat, parts.starts[:-1], parts.lengths).astype("<i8").tobytes())
        return digest.hexdigest()

    def histogram(self, labels: ArrayLike, num_classes: int, role: Role = "all") -> Positions:
        """Return each client's class counts, int64 [clients, classes], given the training set's labels [N].

        Images without a label (``HIDDEN``) are not counted.
        """
        labels = np.asarray(labels)
        counts = np.zeros(self.num_clients * num_classes, dtype=np.int64)
        for field in ("labelled", "unlabelled") if role == "all" else (role,):
            lists = Lists.of(getattr(self, field))
            known = lists.kept(labels[lists.flat] != HIDDEN)
            counts += np.bincount(known.owners * num_classes + labels[known.flat], minlength=len(counts))
        return counts.reshape(self.num_clients, num_classes)

    def without_labelled(self, held: ArrayLike) -> "Partition":
        """Return this partition without the labelled samples at the positions ``held``; pools are unchanged."""
        labelled = Lists.of(self.labelled)
        server = self.server[~np.isin(self.server, held)]
        return replace(self, labelled=labelled.kept(~np.isin(labelled.flat, held)), server=server)

    def moved(self, positions: Positions) -> "Partition":
        """Return this partition for samples moved from i to ``positions[i]``."""
        labelled, unlabelled = Lists.of(self.labelled), Lists.of(self.unlabelled)
        return Partition(
            Lists(positions[labelled.flat], labelled.starts),
            Lists(positions[unlabelled.flat], unlabelled.starts),
            positions[self.server],
            positions[self.pool],
            None if self.labelled_pool is None else positions[self.labelled_pool],
        )


def labelled_sets(partition: Partition, labels: ArrayLike, repeats: Repeats = "none") -> Lists:
    """Return each client's labelled samples, followed by those that ``repeats`` repeats.

    Args:
        partition: the partition.
        labels: class of every training sample, int [N].
        repeats: ``none``; ``second_class``: the labelled samples of a client's second class, if its first two classes
            have equally many labelled samples and different numbers of unlabelled ones (FedDure's released code on
            CINIC-10, where this holds for about three quarters of the clients).
    """
    if repeats == "none":
        return Lists.of(partition.labelled)
    labels = np.asarray(labels)
    sets = []
    for labelled, unlabelled in zip(partition.labelled, partition.unlabelled, strict=True):
        classes = np.setdiff1d(labels[np.concatenate((labelled, unlabelled))], [HIDDEN])[:2]
        with_label = [np.count_nonzero(labels[labelled] == k) for k in classes]
        without = [np.count_nonzero(labels[unlabelled] == k) for k in classes]
        if len(classes) == 2 and with_label[0] == with_label[1] and without[0] != without[1]:
            labelled = np.concatenate((labelled, labelled[labels[labelled] == classes[1]]))
        sets.append(labelled)
    return Lists.of(sets)


def unlabelled_sets(partition: Partition, union_mode: Union = "none") -> Lists:
    """Return each client's unlabelled samples, preceded by those that ``union_mode`` adds.

    Args:
        partition: the partition.
        union_mode: ``none``; ``labelled``: the client's labelled samples; ``code_index``: the samples of the unlabelled
            pool at the indices of the client's samples in the labelled pool as stored, class by class in the order of
            the draw, whoever owns them (FedDB, released code).

    Raises:
        DataError: ``code_index``, but the partition has no labelled pool, or the unlabelled pool is smaller than it.
    """
    if union_mode == "none":
        return Lists.of(partition.unlabelled)
    front: Sequence[Positions] = partition.labelled
    if union_mode == "code_index":
        stored = partition.labelled_pool
        if stored is None or len(stored) > len(partition.pool):
            raise DataError(
                "union_mode code_index needs a labelled pool no larger than the unlabelled one, and this partition has "
                "none: draw one (scenario all_clients with num_labels), or choose another union_mode"
            )
        ascending = np.argsort(stored)
        places = (ascending[np.searchsorted(stored, part, sorter=ascending)] for part in partition.labelled)
        front = [partition.pool[place] for place in places]
    return Lists.of([np.concatenate(pair) for pair in zip(front, partition.unlabelled, strict=True)])
