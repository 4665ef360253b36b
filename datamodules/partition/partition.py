"""Which client holds which training samples and labels: `Partition`, and the lists that clients train on."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from datamodules.common.errors import DataError
from datamodules.common.files import read_bytes, write_atomic
from datamodules.partition.lists import Lists, Positions
from datamodules.partition.sites import HIDDEN

Role = Literal["labelled", "unlabelled", "all"]
Union = Literal["none", "labelled", "code_index"]
Repeats = Literal["none", "second_class"]

_FORMAT = "fssl-bench partition 1"


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
        digest = hashlib.sha256(_FORMAT.encode())
        digest.update(np.array(self.num_clients, dtype="<i8").tobytes())
        for parts in map(Lists.of, (self.labelled, self.unlabelled, [self.server], [self.pool])):
            digest.update(np.insert(parts.flat, parts.starts[:-1], parts.lengths).astype("<i8").tobytes())
        return digest.hexdigest()

    def validate(self, num_samples: int) -> None:
        """Check the partition against a train set of ``num_samples``.

        Raises:
            DataError: a position does not exist, a sample has two owners or two roles, or a pool contains a sample
                twice, contains one of the other kind, or misses one that a client has.
        """
        labelled, unlabelled = Lists.of(self.labelled).flat, Lists.of(self.unlabelled).flat
        drawn = labelled if self.labelled_pool is None else self.labelled_pool
        every = np.concatenate([labelled, unlabelled, self.server, self.pool, drawn])
        outside = every[(every < 0) | (every >= num_samples)]
        if len(outside):
            raise DataError(f"the partition assigns position {outside[0]}, but there are {num_samples} samples")
        own, others, server, pool, all_drawn = (
            np.bincount(part, minlength=num_samples) for part in (labelled, unlabelled, self.server, self.pool, drawn)
        )
        problems = {
            "assigns sample {} twice": own + others + server > 1,
            "has sample {} in the unlabelled pool twice": pool > 1,
            "has sample {} in the unlabelled pool, although it is labelled": pool * (own + server) > 0,
            "does not have sample {} in the unlabelled pool, but a client has it": pool < others,
            "has sample {} in the labelled pool twice": all_drawn > 1,
            "has sample {} in both pools": all_drawn * pool > 0,
            "does not have sample {} in the labelled pool, but a client has it": all_drawn < own,
        }
        for problem, wrong in problems.items():
            if wrong.any():
                raise DataError(f"the partition {problem.format(np.flatnonzero(wrong)[0])}")

    def histogram(self, labels: ArrayLike, num_classes: int, role: Role = "all") -> Positions:
        """Return each client's class counts, int64 [clients, classes], given the training set's labels [N].

        Images without a label (``HIDDEN``) are not counted.
        """
        labels = np.asarray(labels)
        counts = np.zeros(self.num_clients * num_classes, dtype=np.int64)
        for own, other in ((self.labelled, "unlabelled"), (self.unlabelled, "labelled")):
            if role != other:
                lists = Lists.of(own)
                lists = lists.kept(labels[lists.flat] != HIDDEN)
                counts += np.bincount(lists.owners * num_classes + labels[lists.flat], minlength=len(counts))
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

    def save(self, path: str | os.PathLike[str], labels: ArrayLike | None = None) -> None:
        """Write the partition as JSON, atomically; equal partitions give equal bytes.

        With the training set's ``labels`` [N] it can only be loaded for that data set in that order.
        """
        content = {
            "format": _FORMAT,
            "hash": self.hash,
            **({} if labels is None else {"labels": _digest(labels)}),
            "labelled": [part.tolist() for part in self.labelled],
            "unlabelled": [part.tolist() for part in self.unlabelled],
            "server": self.server.tolist(),
            "pool": self.pool.tolist(),
            **({} if self.labelled_pool is None else {"labelled_pool": self.labelled_pool.tolist()}),
        }
        write_atomic(Path(path), json.dumps(content, separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], labels: ArrayLike) -> "Partition":
        """Read a saved partition, check its hash, and `validate` it against the training set's ``labels`` [N].

        Raises:
            DataError: the file is missing or damaged, or the partition was made for another data set.
        """
        try:
            content = json.loads(read_bytes(Path(path)))
            if content["format"] != _FORMAT:
                raise DataError(f"its format is {content['format']!r}, expected {_FORMAT!r}")
            owned = {field: content[field] for field in ("labelled", "unlabelled", "server", "pool")}
            partition = cls(**owned, labelled_pool=content.get("labelled_pool"))
            if partition.hash != content["hash"]:
                raise DataError("its content does not match its hash")
            labels = np.asarray(labels)
            partition.validate(len(labels))
            if content.get("labels", _digest(labels)) != _digest(labels):
                raise DataError("it was made for another data set or another order of it: labels differ")
            if HIDDEN in labels[np.concatenate([*partition.labelled, partition.server])]:
                raise DataError("it gives a site the label of an image that has none")
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(
                f"cannot use the partition file {path}: {type(error).__name__}: {error}. Provide an intact copy, or "
                "save it again with `describe --export`"
            ) from error
        return partition


def _digest(labels: ArrayLike) -> str:
    """SHA-256 of labels as little-endian int64."""
    return hashlib.sha256(np.asarray(labels).astype("<i8").tobytes()).hexdigest()


def stored_hash(path: str | os.PathLike[str]) -> str | None:
    """Read the hash stored in a saved partition; ``None`` for a plain file of clients (``given.read_clients``).

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        content = json.loads(read_bytes(Path(path)))
        return str(content["hash"]) if "format" in content else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read the partition file {path}: {type(error).__name__}: {error}") from error


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
        held = labels[np.concatenate((labelled, unlabelled))]
        classes = np.unique(held[held != HIDDEN])[:2]
        with_label, without = ([int((labels[part] == k).sum()) for k in classes] for part in (labelled, unlabelled))
        again = len(classes) == 2 and with_label[0] == with_label[1] and without[0] != without[1]
        sets.append(np.concatenate((labelled, labelled[labels[labelled] == classes[1]])) if again else labelled)
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
