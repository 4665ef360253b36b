"""The scenarios, which create a `Partition`: some clients hold labels, the server does, or all clients do."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike

from datamodules.common.errors import ConfigError, DataError
from datamodules.partition.lists import NOTHING, Positions
from datamodules.partition.partition import Partition
from datamodules.partition.split import (
    Labels,
    Owned,
    Rule,
    Split,
    check_labels,
    class_members,
    labelled_pool,
    pick_labelled,
    spread,
)


def labels_at_partial_clients(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    *,
    split: Split | Owned,
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
        split: how samples are spread. Clients that are given (``Owned``) keep their numbers.
        labelled_clients: clients 0 .. ``labelled_clients`` - 1 have labels; of clients that are given, those that
            ``rule`` picks.
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
        if picked != 1 or labelled_from is not None or num_clients == 1:
            raise ConfigError(
                "labelled_histogram defines the only picked client, and spreads all other images over the others: "
                "leave out labelled_from, set picked=1, and have 2 clients or more"
            )
        parts = [_draw_histogram(labels, labelled_histogram, num_clients - 1, rng)]
    else:
        parts = spread(split, labels, np.arange(len(labels)), labelled_from or num_clients, rng)
        if isinstance(split, Owned):
            chosen = pick_labelled(parts, labels, rule, labelled_clients, rng)[:labelled_clients]
            return Partition(
                labelled=[part if k in chosen else NOTHING for k, part in enumerate(parts)],
                unlabelled=[NOTHING if k in chosen else part for k, part in enumerate(parts)],
                server=NOTHING,
                pool=_rest(labels, [parts[k] for k in chosen]),
            )
        parts = [parts[k] for k in pick_labelled(parts, labels, rule, picked, rng)]
        if len(parts) != num_clients:
            parts = parts[:picked]
    if len(parts) < num_clients:
        parts += spread(split, labels, _rest(labels, parts), num_clients - len(parts), rng)
    return Partition(
        labelled=(*parts[:labelled_clients], *[NOTHING] * (num_clients - labelled_clients)),
        unlabelled=(*[NOTHING] * labelled_clients, *parts[labelled_clients:]),
        server=NOTHING,
        pool=_rest(labels, parts[:labelled_clients]),
    )


def labels_at_server(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    *,
    split: Split | Owned,
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
    parts = spread(split, labels, pool, num_clients, rng)
    return Partition([NOTHING] * len(parts), parts, server, pool)


def labels_at_all_clients(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    *,
    split: Split | Owned,
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
        first = spread(labelled_split or split, labels, labelled, num_clients, rng)
        second = spread(split, labels, pool, num_clients, rng)
    else:
        first, second = [], []
        for part in spread(split, labels, np.arange(len(labels)), num_clients, rng):
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
    return Partition(first, second, NOTHING, pool, labelled_pool=labelled)


def _draw_histogram(labels: Labels, counts: Sequence[int], others: int, rng: RandomState) -> Positions:
    members = class_members(labels)
    most = list(map(len, members))
    fits = len(counts) == len(most) and all(0 <= count <= there for count, there in zip(counts, most, strict=True))
    if not fits or not 0 < sum(counts) <= len(labels) - others:
        raise DataError(
            f"data.labelled_histogram={list(counts)}: give a number of images for each class, up to {most}, one image "
            f"at least, and leave {others} for the other clients"
        )
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
