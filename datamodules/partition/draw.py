"""Create a partition from a data module's options."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from datamodules.common import streams
from datamodules.common.errors import ConfigError, DataError
from datamodules.partition.lists import NOTHING, Positions
from datamodules.partition.partition import Partition
from datamodules.partition.scenarios import labels_at_all_clients, labels_at_partial_clients, labels_at_server
from datamodules.partition.split import Split, dirichlet, dirichlet_per_client, iid, labelled_pool, pairs

Options = Mapping[str, Any]
"""Options of ``FSSLDataModule`` by name (documented there)."""

MAX_DRAWS = 1000
"""Maximum number of partitions drawn until the labelled clients hold enough of every class."""


def stream_seed(seed: int, stream: str | None) -> int:
    """Derive the seed of a named stream's partition, 0 to 2^32 - 1; without a name ``seed`` itself."""
    return seed if stream is None else streams.derive_seed(seed, f"partition/{stream}") % 2**32


def draw(options: Options, labels: Positions, seed: int) -> Partition:
    """Draw or load the partition that the options describe.

    Args:
        options: options of the data module.
        labels: class of every training image, int ``[N]``.
        seed: seed of NumPy's legacy generator.

    Raises:
        DataError: impossible sizes, a partition file that does not match, or labelled clients that never hold
            ``labelled_min_per_class`` images of every class.
        ConfigError: contradictory options.
    """
    clients, scenario = options["num_clients"], options["scenario"]
    if options["partition_file"]:
        loaded = Partition.load(options["partition_file"], labels)
        if loaded.num_clients != clients:
            raise DataError(
                f"{options['partition_file']} has {loaded.num_clients} clients; "
                f"give --data.num_clients {loaded.num_clients}"
            )
        return _with_enough_labels(options, labels, lambda: loaded, draws=1)
    rng = np.random.RandomState(seed)
    split = split_rule(options, options["partition"])
    if scenario == "partial_clients":
        draw_one = partial(
            labels_at_partial_clients,
            labels,
            clients,
            rng,
            split=split,
            rule=options["labelled_pick"],
            **{name: options[name] for name in ("labelled_clients", "picked", "labelled_from", "labelled_histogram")},
        )
        always_equal = options["split_seed"] is not None and options["labelled_pick"] != "random"
        return _with_enough_labels(options, labels, draw_one, draws=1 if always_equal else MAX_DRAWS)
    in_order = options["labelled_pool_order"] == "dataset"
    by_class = in_order or options["partition"] == "pairs"
    if scenario == "all_clients":
        of_labels = options["labelled_partition"]
        return labels_at_all_clients(
            labels,
            clients,
            rng,
            split=split,
            labelled_split=split_rule(options, of_labels) if of_labels else None,
            num_labels=options["num_labels"],
            fraction=options["label_fraction"],
            per_class=options["labels_per_class"],
            shuffle_pool=not in_order,
            order="class" if by_class else "dataset",
        )
    if options["num_labels"]:
        return labels_at_server(
            labels, clients, rng, split=split, num_labels=options["num_labels"], shuffle_pool=not in_order
        )
    raise ConfigError("scenario 'server', which needs num_labels: give data.num_labels, or choose another scenario")


def _with_enough_labels(
    options: Options, labels: Positions, draw_one: Callable[[], Partition], draws: int
) -> Partition:
    """Draw until the labelled clients together hold ``labelled_min_per_class`` images of every class.

    All partitions are drawn from one stream, and rejected ones are counted (``Partition.redraws``). If more than
    ``picked`` clients are labelled, only the picked ones count, so that bounds that label further clients get the same
    partition.

    Raises:
        DataError: no such partition was found.
    """
    least = options["labelled_min_per_class"]
    if not least:
        return draw_one()
    counted = min(options["picked"] or options["labelled_clients"], options["labelled_clients"])
    most = np.bincount(labels).min()
    for redraws in range(draws if most >= least else 0):
        partition = draw_one()
        own = labels[np.concatenate([partition.labelled[k] for k in range(counted)])]
        if np.bincount(own, minlength=labels.max() + 1).min() >= least:
            return replace(partition, redraws=redraws) if redraws else partition
    found = f"they did in none of {draws} partitions" if draws > 1 else "they do not in the only one that can be drawn"
    found = f"the rarest class has only {most}" if most < least else found
    raise DataError(
        f"data.labelled_min_per_class={least}: the labelled clients ({counted}) must together hold that many images "
        f"of every class, but {found}: label more clients (data.labelled_clients), choose a larger data.beta, or a "
        "smaller data.labelled_min_per_class"
    )


def split_rule(options: Options, kind: str) -> Split:
    """Return the split of this kind, with its options and its own generator if it has one."""
    rule, seed = _rule(options, kind), options["split_seed"]
    if seed is None:
        return rule
    return lambda labels, num_clients, *, rng: rule(labels, num_clients, rng=np.random.RandomState(seed))


def _rule(options: Options, kind: str) -> Split:
    if kind == "pairs":
        return partial(pairs, beta=options["beta"], num_classes=options["split_classes"])
    if kind == "iid":
        return partial(
            iid,
            remainder=options["iid_remainder"],
            permutations=options["iid_permutations"],
            stratified=options["iid_stratified"],
        )
    rule = dirichlet if options["partition_variant"] == "per_class" else dirichlet_per_client
    return partial(
        rule,
        beta=options["beta"],
        min_size=options["min_size"],
        num_classes=options["split_classes"],
        shuffle_classes=options["shuffle"],
        shuffle_clients=options["shuffle"],
    )


def draw_without(options: Options, labels: Positions, held: Positions, seed: int) -> Partition:
    """Run ``draw`` on all images except those at the positions ``held``."""
    if not len(held):
        return draw(options, labels, seed)
    rest = np.setdiff1d(np.arange(len(labels)), held)
    return draw(options, labels[rest], seed).moved(rest)


def validation_images(options: Options, images: int, seed: int, tested: Positions = NOTHING) -> Positions:
    """Return ascending positions of the ``validation`` images, which only the server sees.

    The images at the positions ``tested`` count towards their number, but are not returned.

    Raises:
        ConfigError: more images than there are, fewer than are tested on, or a partition file is given.
    """
    count = options["validation"]
    if not count:
        return NOTHING
    if options["partition_file"] or not len(tested) <= count < images:
        raise ConfigError(
            f"data.validation={count}: give a number below the {images} training images that holds the "
            f"{len(tested)} of data.balanced_holdout, and no data.partition_file"
        )
    generator = streams.generator(seed, "validation")
    shuffled = torch.randperm(images, generator=generator).numpy()
    others = shuffled[~np.isin(shuffled, tested)]
    return np.sort(others[: count - len(tested)])


def balanced_holdout(options: Options, labels: Positions, seed: int) -> Positions:
    """Return ascending positions of the test images of ``balanced_holdout``, equally many per class.

    Args:
        options: options of the data module.
        labels: class of every training image, int ``[N]``.
        seed: seed of the draw.

    Raises:
        ConfigError: not a multiple of the classes, a class has too few, or a partition file is given.
    """
    count, classes = options["balanced_holdout"], int(labels.max()) + 1
    if not count:
        return NOTHING
    most = int(np.bincount(labels).min()) - 1
    if count % classes or count // classes > most or options["partition_file"]:
        raise ConfigError(
            f"data.balanced_holdout={count}: give a multiple of the {classes} classes, up to {most * classes}, and no "
            "data.partition_file"
        )
    rng = np.random.RandomState(streams.derive_seed(seed, "balanced_holdout") % 2**32)
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
        order: Positions = torch.randperm(len(part), generator=generator).numpy()
        return np.take(part, order)

    parts = [shuffled(part) for part in (*partition.labelled, partition.server)]
    count = round(share * sum(map(len, parts)))
    spare = shuffled(np.concatenate([part[1:] for part in parts]))
    if not 0 < count <= len(spare):
        raise ConfigError(
            f"data.labelled_holdout={share} of the labelled images is {count}; it must be at least 1, and every site "
            f"must keep one, so at most {len(spare)} can be held out: change it, or give more labels"
        )
    held: Positions = np.sort(spare[:count])
    return held
