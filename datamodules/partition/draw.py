"""Create a partition from a data module's options."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from datamodules.common import streams
from datamodules.common.errors import ConfigError, DataError
from datamodules.partition.given import NOBODY, Given, read_clients
from datamodules.partition.lists import NOTHING, Positions
from datamodules.partition.partition import Partition
from datamodules.partition.scenarios import Draw, Options
from datamodules.partition.sites import HIDDEN
from datamodules.partition.split import labelled_pool


def stream_seed(seed: int, stream: str | None) -> int:
    """Derive the seed of a named stream's partition, 0 to 2^32 - 1; without a name ``seed`` itself."""
    return seed if stream is None else streams.derive_seed(seed, f"partition/{stream}") % 2**32


class Shares(NamedTuple):
    """Who has which training images.

    Args:
        partition: what the clients and the server train on.
        validation: ascending positions that only the server sees.
        tested: ascending positions that the test set is replaced by.
        names: the clients' names; their numbers, where nobody names them.
        digest: SHA-256 of a plain partition file.
    """

    partition: Partition
    validation: Positions
    tested: Positions
    names: tuple[str, ...]
    digest: str | None = None


def shares(options: Options, labels: Positions, seed: int, clients: NDArray[Any] | None = None) -> Shares:
    """Share out the training images as the options describe. Images without a label are never held out.

    Args:
        options: options of the data module.
        labels: class of every training image, int ``[N]``; ``HIDDEN`` if nobody knows it.
        seed: seed of NumPy's legacy generator.
        clients: see ``Arrays.train_clients``.

    Raises:
        DataError: impossible sizes, or a partition file that does not match.
        ConfigError: contradictory options; or one needs labels that nobody knows, or clients that are drawn.
    """
    file, known = options["partition_file"], np.flatnonzero(labels != HIDDEN)
    unknown = np.flatnonzero(labels == HIDDEN)
    given = read_clients(file, len(labels)) if file else None
    if clients is not None:
        if file:
            raise ConfigError("data.partition_file and data.clients_in both say who has which images: give one of them")
        given = Given.of(clients)
    _check(options, len(unknown), given)
    tested = balanced_holdout(options, labels[known], seed)
    validation, tested = known[validation_images(options, len(known), seed, tested)], known[tested]
    if file and given is None:
        partition = Partition.load(file, labels)
        _check_number(options, partition.num_clients)
    elif given is not None and given.labelled is not None:
        partition = given.partition(labels, seed)
    else:
        held, owners = np.concatenate([validation, tested, unknown]), None
        if given is not None:
            held, owners = np.append(held, np.flatnonzero(given.owners == NOBODY)), given.owners
        rest = np.setdiff1d(np.arange(len(labels)), held)
        own = None if owners is None else owners[rest]
        partition = Draw(options, labels[rest], RandomState(seed), own).partition().moved(rest)
        if len(unknown):
            partition = _with_unknown(partition, options, unknown, given, seed)
    if options["labelled_holdout"]:
        tested = labelled_holdout(partition, options["labelled_holdout"], seed)
        partition = partition.without_labelled(tested)
    names = tuple(map(str, range(partition.num_clients))) if given is None else given.names
    return Shares(partition, validation, tested, names, given.digest if given else None)


def _check(options: Options, unknown: int, given: Given | None) -> None:
    """Refuse options that do not suit images without a label, or clients that are given."""
    if given is not None:
        _check_number(options, len(given.names))
        for name in ("labelled_from", "labelled_histogram", "labelled_partition"):
            if options[name] is not None:
                raise ConfigError(f"data.{name} has no effect on clients that are given: leave it out")
    if unknown and options["hidden_labels"] != "hidden":
        what = f"data.hidden_labels={options['hidden_labels']} needs the labels of all images"
        raise ConfigError(f"{what}, and {unknown} training images have none: leave it out")
    if options["unlabelled_only"] and not unknown:
        raise ConfigError("data.unlabelled_only has no effect: every training image has a label. Leave it out")


def _check_number(options: Options, clients: int) -> None:
    if clients != options["num_clients"]:
        where = options["partition_file"] or "the data set"
        raise DataError(f"{where} has {clients} clients; give --data.num_clients {clients}")


def _with_unknown(
    partition: Partition, options: Options, unknown: Positions, given: Given | None, seed: int
) -> Partition:
    """Add images without a label: to the clients that own them, or in equal numbers, at random, to those without labels
    (``partial_clients``, if there are any) or to all.
    """
    added = [NOTHING] * partition.num_clients
    if given is not None:
        added = [unknown[given.owners[unknown] == client] for client in range(len(added))]
        unknown = NOTHING if given.digest else unknown[given.owners[unknown] == NOBODY]
    takers = [client for client, part in enumerate(partition.labelled) if not len(part)]
    if options["scenario"] != "partial_clients" or not takers:
        takers = list(range(len(added)))
    rng = RandomState(streams.derive_seed(seed, "unlabelled") % 2**32)
    for client, part in zip(takers, np.array_split(rng.permutation(unknown), len(takers)), strict=True):
        added[client] = np.concatenate([added[client], part])
    unlabelled = [np.concatenate(pair) for pair in zip(partition.unlabelled, added, strict=True)]
    return replace(partition, unlabelled=unlabelled, pool=np.concatenate([partition.pool, *added]))


def validation_images(options: Options, images: int, seed: int, tested: Positions = NOTHING) -> Positions:
    """Return ascending positions of the ``validation`` images, which only the server sees.

    The images at the positions ``tested`` count towards their number, but are not returned.

    Raises:
        ConfigError: more images than there are, or fewer than are tested on.
    """
    count = options["validation"]
    if not count:
        return NOTHING
    if not len(tested) <= count < images:
        beside = f", {len(tested)} of data.balanced_holdout among them" if len(tested) else ""
        raise ConfigError(f"data.validation={count}: give a number below the {images} training images{beside}")
    shuffled = torch.randperm(images, generator=streams.generator(seed, "validation")).numpy()
    others = shuffled[~np.isin(shuffled, tested)]
    return np.sort(others[: count - len(tested)])


def balanced_holdout(options: Options, labels: Positions, seed: int) -> Positions:
    """Return ascending positions of the test images of ``balanced_holdout``, equally many per class.

    Args:
        options: options of the data module.
        labels: class of every training image, int ``[N]``.
        seed: seed of the draw.

    Raises:
        ConfigError: not a multiple of the classes, or a class has too few.
    """
    count, classes = options["balanced_holdout"], int(labels.max()) + 1
    if not count:
        return NOTHING
    most = int(np.bincount(labels).min()) - 1
    if count % classes or count // classes > most:
        raise ConfigError(
            f"data.balanced_holdout={count}: give a multiple of {classes} classes, up to {most * classes}"
        )
    rng = RandomState(streams.derive_seed(seed, "balanced_holdout") % 2**32)
    held, _ = labelled_pool(labels, count // classes, rng)
    return np.sort(held)


def labelled_holdout(partition: Partition, share: float, seed: int) -> Positions:
    """Return ascending positions of the held-out labelled images, drawn at random from all but one per site.

    Args:
        partition: the partition.
        share: share of the labelled images, above 0.
        seed: seed of the draw.

    Raises:
        ConfigError: the share is less than one image, or leaves a site without labels.
    """
    generator = streams.generator(seed, "holdout")

    def shuffled(part: Positions) -> Positions:
        return np.take(part, torch.randperm(len(part), generator=generator).numpy())

    parts = [shuffled(part) for part in (*partition.labelled, partition.server)]
    count = round(share * sum(map(len, parts)))
    spare = shuffled(np.concatenate([part[1:] for part in parts]))
    if not 0 < count <= len(spare):
        raise ConfigError(
            f"data.labelled_holdout={share} of the labelled images is {count}; every site keeps one, so 1 to "
            f"{len(spare)} can be held out: change it, or give more labels"
        )
    return np.sort(spare[:count])
