"""Which client holds which training samples and labels: `Partition` and the scenarios that create one."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray

from datamodules.common.errors import ConfigError, DataError
from datamodules.common.files import write_atomic
from datamodules.partition.lists import Lists
from datamodules.partition.lists import Positions as Positions
from datamodules.partition.split import Labels, Rule, Split, check_labels, class_members, labelled_pool, pick_labelled

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
    spread over the clients; it does not assign samples and is not part of the hash. Neither is ``redraws``: how many
    partitions were rejected before this one (``labelled_min_per_class``).
    """

    labelled: Sequence[Positions]
    unlabelled: Sequence[Positions]
    server: Positions
    pool: Positions
    labelled_pool: Positions | None = None
    redraws: int = 0

    def __post_init__(self) -> None:
        if len(self.labelled) != len(self.unlabelled):
            raise DataError(
                "a partition needs one labelled and one unlabelled list per client, "
                f"got {len(self.labelled)} and {len(self.unlabelled)}"
            )
        object.__setattr__(self, "labelled", Lists.of(self.labelled))
        object.__setattr__(self, "unlabelled", Lists.of(self.unlabelled))
        object.__setattr__(self, "server", _positions(self.server))
        object.__setattr__(self, "pool", _positions(self.pool))
        if self.labelled_pool is not None:
            object.__setattr__(self, "labelled_pool", _positions(self.labelled_pool))

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
        labelled, unlabelled = Lists.of(self.labelled), Lists.of(self.unlabelled)
        drawn = () if self.labelled_pool is None else (("the labelled pool", self.labelled_pool),)
        whole = (("the server", self.server), ("the pool", self.pool), *drawn)
        for name, part in (("labelled", labelled.flat), ("unlabelled", unlabelled.flat), *whole):
            outside = np.flatnonzero((part < 0) | (part >= num_samples))
            if len(outside):
                lists = {"labelled": labelled, "unlabelled": unlabelled}.get(name)
                to = name if lists is None else f"client {lists.owners[outside[0]]} ({name})"
                raise DataError(
                    f"the partition was made for another data set: it assigns position {part[outside[0]]} to {to}, "
                    f"but there are {num_samples} samples"
                )
        with_label = _counts([labelled.flat, self.server], num_samples)
        without = _counts([unlabelled.flat], num_samples)
        twice = np.flatnonzero(with_label + without > 1)
        if len(twice):
            names = [f"client {k} (labelled)" for k in labelled.owners[labelled.flat == twice[0]]]
            names += ["the server"] * int(np.count_nonzero(self.server == twice[0]))
            names += [f"client {k} (unlabelled)" for k in unlabelled.owners[unlabelled.flat == twice[0]]]
            raise DataError(f"the partition assigns sample {twice[0]} twice: to {' and to '.join(names)}")
        in_pool = _counts([self.pool], num_samples)
        _check_pool(
            "unlabelled",
            {
                "twice": in_pool > 1,
                "although it is labelled": in_pool * with_label > 0,
                "not at all, but a client has it": in_pool < without,
            },
        )
        if self.labelled_pool is not None:
            in_labelled_pool = _counts([self.labelled_pool], num_samples)
            _check_pool(
                "labelled",
                {
                    "twice": in_labelled_pool > 1,
                    "although the unlabelled pool holds it too": in_labelled_pool * in_pool > 0,
                    "not at all, but a client has it": in_labelled_pool < _counts([labelled.flat], num_samples),
                },
            )

    def histogram(self, labels: ArrayLike, num_classes: int, role: Role = "all") -> Positions:
        """Return each client's class counts, int64 [clients, classes], given the training set's labels [N]."""
        labels = np.asarray(labels)
        counts = np.zeros(self.num_clients * num_classes, dtype=np.int64)
        for own, other in ((self.labelled, "unlabelled"), (self.unlabelled, "labelled")):
            if role != other:
                lists = Lists.of(own)
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
            self.redraws,
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
            **({"redraws": self.redraws} if self.redraws else {}),
        }
        write_atomic(Path(path), json.dumps(content, separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], labels: ArrayLike) -> "Partition":
        """Read a saved partition, check its hash, and `validate` it against the training set's ``labels`` [N].

        Raises:
            DataError: the file is missing or damaged, or the partition was made for another data set.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise DataError(f"its format is {content['format']!r}, expected {_FORMAT!r}")
            owned = {field: content[field] for field in ("labelled", "unlabelled", "server", "pool")}
            partition = cls(**owned, labelled_pool=content.get("labelled_pool"), redraws=int(content.get("redraws", 0)))
            if partition.hash != content["hash"]:
                raise DataError("its content does not match its hash")
            partition.validate(len(np.asarray(labels)))
            if content.get("labels", _digest(labels)) != _digest(labels):
                raise DataError("it was made for another data set or another order of it: labels differ")
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(
                f"cannot use the partition file {path}: {type(error).__name__}: {error}. "
                "Provide an intact copy, or save it again with `describe --export` or Partition.save"
            ) from error
        return partition


def _check_pool(name: str, problems: Mapping[str, NDArray[np.bool_]]) -> None:
    """Check that no sample has a problem with this pool, given as a mask over all samples."""
    for problem, wrong in problems.items():
        if wrong.any():
            raise DataError(f"the partition's {name} pool holds sample {np.flatnonzero(wrong)[0]} {problem}")


def _digest(labels: ArrayLike) -> str:
    """SHA-256 of labels as little-endian int64."""
    return hashlib.sha256(np.asarray(labels).astype("<i8").tobytes()).hexdigest()


def stored_hash(path: str | os.PathLike[str]) -> str:
    """Read the hash stored in a saved partition.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        return str(json.loads(Path(path).read_text(encoding="utf-8"))["hash"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read the partition file {path}: {type(error).__name__}: {error}") from error


def labels_at_partial_clients(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    *,
    split: Split,
    labelled_clients: int = 1,
    picked: int | None = None,
    rule: Rule = "all_classes_closest",
    labelled_from: int | None = None,
    labelled_histogram: Sequence[int] | None = None,
) -> Partition:
    """Give some clients all their labels, the others none; ``labelled_clients=num_clients`` labels all.

    Args:
        labels: class of every training sample, int [N].
        num_clients: number of clients.
        rng: legacy generator.
        split: how samples are spread.
        labelled_clients: clients 0 .. ``labelled_clients`` - 1 have labels.
        picked: number of clients that ``rule`` moves to the front, see `pick_labelled`. Give it if runs with different
            ``labelled_clients`` must have the same clients. Default: ``labelled_clients``, or 1 if all are labelled.
        rule: see `pick_labelled`.
        labelled_from: keep the picked clients of a partition over this many clients, drawn first, and spread all other
            samples over the remaining clients. Default: one partition over ``num_clients``.
        labelled_histogram: class counts [C] of client 0: random samples of each class, drawn first; all other samples
            are spread over the other clients.

    Raises:
        DataError: impossible sizes.
        ConfigError: contradictory options.
    """
    labels = check_labels(labels, num_clients)
    if not 1 <= labelled_clients <= num_clients:
        raise DataError(f"labelled_clients must be 1 to {num_clients} (all clients), got {labelled_clients}")
    if picked is None:
        picked = labelled_clients if labelled_clients < num_clients else 1
    if labelled_from not in (None, num_clients) and picked >= num_clients:
        raise ConfigError(
            f"labelled_from={labelled_from} keeps the picked clients and spreads all other images over the rest, but "
            f"picked={picked} of {num_clients} clients leaves none: pick fewer, or leave labelled_from out"
        )
    if labelled_histogram is not None:
        if picked != 1 or labelled_from is not None:
            raise ConfigError(
                "labelled_histogram defines the only picked client: leave out labelled_from, and set picked=1"
            )
        parts = [_draw_histogram(labels, labelled_histogram, rng)]
    else:
        parts = split(labels, labelled_from or num_clients, rng=rng)
        parts = [parts[k] for k in pick_labelled(parts, labels, rule, picked, rng)]
        if len(parts) != num_clients:
            parts = parts[:picked]
    if len(parts) < num_clients:
        rest = _rest(labels, parts)
        others = split(labels[rest], num_clients - len(parts), rng=rng)
        parts += [rest[part] for part in others]
    nothing = _positions(())
    return Partition(
        labelled=(*parts[:labelled_clients], *[nothing] * (num_clients - labelled_clients)),
        unlabelled=(*[nothing] * labelled_clients, *parts[labelled_clients:]),
        server=nothing,
        pool=_rest(labels, parts[:labelled_clients]),
    )


def labels_at_server(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    *,
    split: Split,
    num_labels: int,
    shuffle_pool: bool = True,
) -> Partition:
    """Give the server ``num_labels`` class-balanced labelled samples and spread all others over the clients.

    Draws: the labelled pool (unless it is the first images of each class: ``shuffle_pool=False``), then ``split``. The
    unlabelled pool is stored class by class.

    Raises:
        DataError: impossible sizes, or ``num_labels`` is not a multiple of the number of classes.
    """
    labels = check_labels(labels, num_clients)
    server, pool = labelled_pool(labels, _per_class(labels, num_labels), rng if shuffle_pool else None)
    parts = [pool[part] for part in split(labels[pool], num_clients, rng=rng)]
    return Partition([_positions(())] * len(parts), parts, server, pool)


def labels_at_all_clients(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    *,
    split: Split,
    labelled_split: Split | None = None,
    num_labels: int | None = None,
    fraction: float | None = None,
    per_class: int | None = None,
    shuffle_pool: bool = True,
    order: Literal["class", "dataset"] = "dataset",
) -> Partition:
    """Give every client labelled and unlabelled samples, by ``num_labels``, ``fraction`` or ``per_class``.

    With ``num_labels``, a class-balanced labelled pool and the unlabelled rest are spread independently, the labelled
    pool first. Otherwise all samples are spread once, and a random part of each client's samples is labelled
    (``fraction``; rounded, at least one), or the first ``per_class`` of every class it has (CINIC-10 in FedDure's
    released code).

    Args:
        labels: class of every training sample, int [N].
        num_clients: number of clients.
        rng: legacy generator.
        split: how the samples, or those of the unlabelled pool, are spread.
        labelled_split: how the labelled pool is spread; default: ``split``.
        num_labels: labelled samples in total, a multiple of the number of classes.
        fraction: labelled share of each client's samples, in (0, 1].
        per_class: maximum number of labelled samples per class and client.
        shuffle_pool: draw the labelled pool at random, otherwise take each class's first samples.
        order: order of the unlabelled pool, see `labelled_pool`.

    Raises:
        DataError: impossible sizes.
        ConfigError: contradictory options.
    """
    labels = check_labels(labels, num_clients)
    given = [value is not None for value in (num_labels, fraction, per_class)]
    if sum(given) != 1 or (labelled_split is not None and num_labels is None):
        also = "given" if labelled_split is not None else None
        raise ConfigError(
            "labels at all clients need one of data.num_labels (with data.labelled_partition or without), "
            f"data.label_fraction and data.labels_per_class; num_labels={num_labels}, label_fraction={fraction}, "
            f"labels_per_class={per_class}, labelled_partition={also}: set the others to null"
        )
    labelled: Positions | None = None
    if num_labels is not None:
        count = _per_class(labels, num_labels)
        labelled, pool = labelled_pool(labels, count, rng if shuffle_pool else None, order=order)
        first = [labelled[part] for part in (labelled_split or split)(labels[labelled], num_clients, rng=rng)]
        second = [pool[part] for part in split(labels[pool], num_clients, rng=rng)]
    else:
        first, second = [], []
        for part in split(labels, num_clients, rng=rng):
            if fraction is not None:
                if not 0 < fraction <= 1:
                    raise DataError(f"the labelled fraction of a client must be in (0, 1], got {fraction}")
                own = rng.permutation(part)
                count = max(1, round(fraction * len(own)))
            else:
                own, count = _first_of_each_class(part, labels, per_class or 0)
            first.append(own[:count])
            second.append(own[count:])
        pool = _rest(labels, first)
    return Partition(first, second, _positions(()), pool, labelled_pool=labelled)


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
        classes = np.unique(labels[np.concatenate((labelled, unlabelled))])[:2]
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
        if stored is None:
            raise DataError(
                "union_mode code_index: this partition has no labelled pool in a stored order. Draw one (scenario "
                "all_clients with num_labels; files saved by older versions do not have it either), or choose "
                "union_mode labelled or none"
            )
        if len(stored) > len(partition.pool):
            raise DataError(
                f"union_mode code_index: {len(stored)} labelled samples, but only {len(partition.pool)} unlabelled "
                "ones to replace them; choose union_mode labelled or none"
            )
        ascending = np.argsort(stored)
        places = (ascending[np.searchsorted(stored, part, sorter=ascending)] for part in partition.labelled)
        front = [partition.pool[place] for place in places]
    return Lists.of([np.concatenate(pair) for pair in zip(front, partition.unlabelled, strict=True)])


def _draw_histogram(labels: Labels, counts: Sequence[int], rng: RandomState) -> Positions:
    members = class_members(labels)
    available = [len(positions) for positions in members]
    if len(counts) != len(members) or not all(0 <= n <= a for n, a in zip(counts, available, strict=True)):
        raise DataError(f"the labelled histogram {list(counts)} does not fit into class counts {available}")
    for positions in members:
        rng.shuffle(positions)
    return np.concatenate([positions[:n] for positions, n in zip(members, counts, strict=True)])


def _first_of_each_class(part: Positions, labels: Labels, count: int) -> tuple[Positions, int]:
    """Move the first ``count`` samples of every class to the front; also return their number."""
    seen: dict[int, int] = {}
    late = np.zeros(len(part), dtype=bool)
    for place, position in enumerate(part):
        k = int(labels[position])
        seen[k] = seen.get(k, 0) + 1
        late[place] = seen[k] > count
    return part[np.argsort(late, kind="stable")], int(len(part) - late.sum())


def _per_class(labels: Labels, num_labels: int) -> int:
    classes = int(labels.max()) + 1
    if num_labels < classes or num_labels % classes:
        near = max(num_labels // classes, 1) * classes
        raise DataError(
            f"num_labels={num_labels} is not a multiple of {classes} classes: choose {near} or {near + classes}"
        )
    return num_labels // classes


def _rest(labels: Labels, taken: Sequence[Positions]) -> Positions:
    """Return the positions not in ``taken``, ascending."""
    left = np.ones(len(labels), dtype=bool)
    left[np.concatenate(taken)] = False
    return np.flatnonzero(left)


def _counts(parts: Sequence[Positions], num_samples: int) -> Positions:
    return np.bincount(np.concatenate(parts), minlength=num_samples)


def _positions(values: ArrayLike) -> Positions:
    """Return a read-only int64 copy of a list of positions."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"positions must be a list of integers, got {array.dtype} {array.shape}")
    array = array.astype(np.int64)
    array.setflags(write=False)
    return array
