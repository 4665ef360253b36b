"""Create a partition from a data module's options: some clients hold labels, the server does, or all clients do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from datamodules.common import streams
from datamodules.common.errors import ConfigError, DataError
from datamodules.common.options import label_options
from datamodules.partition import split
from datamodules.partition.given import NOBODY, NamedClients, read_clients
from datamodules.partition.lists import NOTHING, Positions
from datamodules.partition.partition import Partition
from datamodules.partition.sites import HIDDEN

Options = Mapping[str, Any]
"""Options of ``FSSLDataModule`` by name (documented there)."""


def stream_seed(seed: int, stream: str | None) -> int:
    """Derive the seed of a named stream's partition, 0 to 2^32 - 1; without a name ``seed`` itself."""
    return seed if stream is None else streams.derive_seed(seed, f"partition/{stream}") % 2**32


class Shares(NamedTuple):
    """Who has which training images.

    Args:
        partition: what the clients and the server train on.
        validation: ascending positions that go to nobody.
        tested: ascending positions that the test set is replaced by.
        names: the clients' names; their numbers, where nobody names them.
        sha256: that of the partition file, if there is one, by its name.
    """

    partition: Partition
    validation: Positions
    tested: Positions
    names: tuple[str, ...]
    sha256: dict[str, str]


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
    file = options["partition_file"]
    known, unknown = np.flatnonzero(labels != HIDDEN), np.flatnonzero(labels == HIDDEN)
    named = read_clients(file, len(labels)) if file else None
    if named is not None and clients is not None:
        raise ConfigError(
            "data.partition_file and the data (their class, or data.clients_in) both name clients: keep one"
        )
    if clients is not None:
        named = NamedClients.of(clients)
    _check_options(options, len(unknown), named)
    holdout = balanced_holdout(options, labels[known], seed)  # positions in ``known``
    validation, tested = known[validation_images(options, len(known), seed, holdout)], known[holdout]
    if named is not None and named.labelled is not None:
        partition = named.partition(labels, seed)
    else:
        nobodys = NOTHING if named is None else np.flatnonzero(named.owners == NOBODY)
        drawn = _rest(labels, [validation, tested, unknown, nobodys])
        if not len(drawn):
            where = file or "the data set"
            raise DataError(f"{where} gives nobody an image with a label: name the client of one at least")
        owners, names = (None, ()) if named is None else (named.owners[drawn], named.names)
        partition = Draw(options, labels[drawn], RandomState(seed), owners, names).partition().moved(drawn)
        if len(unknown):
            partition = _with_unknown(partition, options, unknown, named, seed)
    if options["labelled_holdout"]:
        tested = labelled_holdout(partition, options["labelled_holdout"], seed)
        partition = partition.without_labelled(tested)
    names = tuple(map(str, range(partition.num_clients))) if named is None else named.names
    return Shares(partition, validation, tested, names, named.sha256 if named else {})


def validation_images(options: Options, images: int, seed: int, tested: Positions) -> Positions:
    """Return ascending positions of the ``validation`` images, which go to nobody.

    The images at the positions ``tested`` count towards their number, but are not returned.

    Raises:
        ConfigError: as many images as there are or more, or fewer than are tested on.
    """
    count = options["validation"]
    if not count:
        return NOTHING
    if not len(tested) <= count < images:
        least = f" and from {len(tested)}, the images of data.balanced_holdout" if len(tested) else ""
        raise ConfigError(f"data.validation={count}: give a number below the {images} training images{least}")
    shuffled = torch.randperm(images, generator=streams.generator(seed, "validation")).numpy()
    others = shuffled[~np.isin(shuffled, tested)]
    return np.sort(others[: count - len(tested)])


def balanced_holdout(options: Options, labels: Positions, seed: int) -> Positions:
    """Return ascending positions of the test images of ``balanced_holdout``, equally many per class.

    Args:
        options: options of the data module.
        labels: class of every image that has a label, int ``[N]``.
        seed: seed of the draw.

    Raises:
        ConfigError: not a multiple of the classes, or a class has too few.
    """
    count, classes = options["balanced_holdout"], int(labels.max()) + 1
    if not count:
        return NOTHING
    most = (int(np.bincount(labels).min()) - 1) * classes
    if count % classes or count > most:
        raise ConfigError(f"data.balanced_holdout={count}: give a multiple of {classes} classes, up to {most}")
    rng = RandomState(streams.derive_seed(seed, "balanced_holdout") % 2**32)
    held, _ = split.labelled_pool(labels, count // classes, rng)
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


@dataclass(frozen=True)
class Draw:
    """Draws partitions, one after the other from one generator.

    Args:
        options: options of the data module.
        labels: class of every image to be shared out, int64 [N].
        rng: legacy generator.
        owners: client of each, int64 [N], if clients are given; these keep their numbers.
        names: the names of given clients.
    """

    options: Options
    labels: split.Labels
    rng: RandomState
    owners: Positions | None = None
    names: tuple[str, ...] = ()

    def partition(self) -> Partition:
        """The next partition.

        Raises:
            DataError: impossible sizes.
            ConfigError: contradictory options.
        """
        if self.options["unlabelled_only"]:
            return self._all_labelled()
        if self.options["scenario"] == "server":
            return self._labels_at_server()
        if self.options["scenario"] == "all_clients":
            return self._labels_at_all_clients()
        return self._labels_at_partial_clients()

    def spread(self, pool: Positions, num_clients: int, kind: str | None = None) -> list[Positions]:
        """One array of the positions ``pool`` per client, by a rule of this ``kind`` (default: ``partition``)."""
        if self.owners is not None:
            return [pool[self.owners[pool] == client] for client in range(num_clients)]
        o, labels = self.options, self.labels[pool]
        rng = self.rng if o["split_seed"] is None else RandomState(o["split_seed"])
        kind = kind or o["partition"]
        if kind == "iid":
            parts = split.iid(labels, num_clients, rng, o["iid_remainder"], o["iid_permutations"], o["iid_stratified"])
        elif kind == "pairs":
            parts = split.pairs(labels, num_clients, o["beta"], rng, o["split_classes"])
        else:
            rule = split.dirichlet if o["partition_variant"] == "per_class" else split.dirichlet_per_client
            parts = rule(labels, num_clients, o["beta"], rng, o["split_classes"], o["min_size"], o["shuffle"])
        return [pool[part] for part in parts]

    def _all_labelled(self) -> Partition:
        """All labels stay known: at the server, at all clients, or at those that are labelled."""
        clients, every = self.options["num_clients"], np.arange(len(self.labels))
        nothing = [NOTHING] * clients
        if self.options["scenario"] == "server":
            return Partition(nothing, nothing, every, NOTHING)
        if self.options["scenario"] == "partial_clients" and self.owners is None:
            clients = min(self.options["labelled_clients"], clients)
        return Partition([*self.spread(every, clients), *nothing[clients:]], nothing, NOTHING, NOTHING)

    def _labels_at_partial_clients(self) -> Partition:
        """Give some clients all their labels, the others none: the first ones, behind a swap that ``labelled_pick``
        describes; of given clients those that it picks.

        With ``labelled_from``, the picked clients are those of a partition over so many clients, drawn first. With
        ``labelled_histogram``, client 0 has random images of each class, drawn first. All other images are spread over
        the remaining clients.
        """
        o, labels, rng = self.options, self.labels, self.rng
        clients, num_labelled, labelled_from = o["num_clients"], o["labelled_clients"], o["labelled_from"]
        if not 1 <= num_labelled <= clients:
            raise DataError(f"labelled_clients must be 1 to {clients} (all clients), got {num_labelled}")
        picked = o["picked"] or (num_labelled if num_labelled < clients else 1)
        if labelled_from not in (None, clients) and picked >= clients:
            raise ConfigError(
                f"labelled_from={labelled_from} spreads all other images over the clients that are not picked, and "
                f"picked={picked} of {clients} clients leaves none: pick fewer, or leave labelled_from out"
            )
        chosen = set(range(num_labelled))
        if (histogram := o["labelled_histogram"]) is not None:
            if picked != 1 or labelled_from is not None or clients == 1:
                raise ConfigError(
                    "labelled_histogram defines the only picked client: leave out labelled_from, set picked=1, and "
                    "have 2 clients or more"
                )
            parts = [self._with_counts(histogram, clients - 1)]
        else:
            parts = self.spread(np.arange(len(labels)), labelled_from or clients)
            if (named := self._named()) is not None:
                chosen = named
            elif self.owners is not None:
                order = split.pick_labelled(parts, labels, o["labelled_pick"], num_labelled, rng)
                chosen = set(order[:num_labelled].tolist())
            else:
                order = split.pick_labelled(parts, labels, o["labelled_pick"], picked, rng)
                parts = [parts[k] for k in (order if len(parts) == clients else order[:picked])]
        if len(parts) < clients:
            parts += self.spread(_rest(labels, parts), clients - len(parts))
        labelled = [part if k in chosen else NOTHING for k, part in enumerate(parts)]
        unlabelled = [NOTHING if k in chosen else part for k, part in enumerate(parts)]
        return Partition(labelled, unlabelled, NOTHING, _rest(labels, labelled))

    def _named(self) -> set[int] | None:
        """The numbers of the labelled clients that ``labelled_pick`` names, or of all, if all are labelled.

        ``None`` if it is a rule.
        """
        pick, count, clients = (self.options[name] for name in ("labelled_pick", "labelled_clients", "num_clients"))
        if isinstance(pick, str):
            return None
        wanted = sorted(set(map(str, pick)))
        if unknown := [name for name in wanted if name not in self.names]:
            given = ", ".join(self.names) or "none (those that are drawn have no names)"
            raise ConfigError(f"data.labelled_pick names {unknown[0]!r}; clients that are given: {given}")
        if count == clients:
            return set(range(clients))
        if len(wanted) != count:
            what = f"data.labelled_pick names {len(wanted)} clients, and data.labelled_clients is {count}"
            raise ConfigError(f"{what}: give --data.labelled_clients {len(wanted)}")
        return {self.names.index(name) for name in wanted}

    def _labels_at_server(self) -> Partition:
        """Give the server ``num_labels`` class-balanced labelled images and spread all others over the clients."""
        clients, count = self.options["num_clients"], self.options["num_labels"]
        if not count:
            raise ConfigError(
                "data.scenario=server needs data.num_labels: give it, or choose another scenario; with images without "
                "a label, data.unlabelled_only true gives the server all labels"
            )
        server, pool = self._pools(count, by_class=True)
        return Partition([NOTHING] * clients, self.spread(pool, clients), server, pool)

    def _labels_at_all_clients(self) -> Partition:
        """Give every client labelled and unlabelled images.

        With ``num_labels``, a class-balanced labelled pool and the unlabelled rest are spread independently, the
        labelled pool first. Otherwise all images are spread once, and a random part of each client's is labelled
        (``label_fraction``; rounded, at least one), or the first ``labels_per_class`` of every class it has (CINIC-10
        in FedDure's released code).
        """
        o, clients = self.options, self.options["num_clients"]
        alternatives = ("num_labels", "label_fraction", "labels_per_class")
        chosen = [name for name in alternatives if o[name] is not None]
        if len(chosen) != 1 or (o["labelled_partition"] and o["num_labels"] is None):
            values = ", ".join(f"{name}={o[name]}" for name in (*alternatives, "labelled_partition"))
            raise ConfigError(
                "labels at all clients need one of data.num_labels (with data.labelled_partition or without), "
                f"data.label_fraction and data.labels_per_class; {values}: set the others to null"
            )
        if o["num_labels"] is not None:
            in_order = o["labelled_pool_order"] == "dataset"
            labelled_pool, pool = self._pools(o["num_labels"], by_class=in_order or o["partition"] == "pairs")
            labelled = self.spread(labelled_pool, clients, o["labelled_partition"])
            return Partition(labelled, self.spread(pool, clients), NOTHING, pool, labelled_pool)
        labelled, unlabelled = [], []
        for part in self.spread(np.arange(len(self.labels)), clients):
            if o["labels_per_class"] is not None:
                with_label, without = self._first_of_each_class(part)
            else:
                count = max(1, round(o["label_fraction"] * len(part)))
                with_label, without = np.split(self.rng.permutation(part), [count])
            labelled.append(with_label)
            unlabelled.append(without)
        return Partition(labelled, unlabelled, NOTHING, _rest(self.labels, labelled))

    def _pools(self, num_labels: int, by_class: bool) -> tuple[Positions, Positions]:
        """The labelled pool and the unlabelled one; see ``labelled_pool``."""
        classes = int(self.labels.max()) + 1
        if num_labels < classes or num_labels % classes:
            near = max(num_labels // classes, 1) * classes
            way = f"choose {near} or {near + classes}"
            raise DataError(f"num_labels={num_labels} is not a multiple of {classes} classes: {way}")
        rng = self.rng if self.options["labelled_pool_order"] == "shuffled" else None
        return split.labelled_pool(self.labels, num_labels // classes, rng, "class" if by_class else "dataset")

    def _first_of_each_class(self, part: Positions) -> tuple[Positions, Positions]:
        """A client's first ``labels_per_class`` images of every class, and its other images."""
        labels, count = self.labels[part], self.options["labels_per_class"]
        is_first = np.zeros(len(part), dtype=bool)
        for k in np.unique(labels):
            is_first[np.flatnonzero(labels == k)[:count]] = True
        return part[is_first], part[~is_first]

    def _with_counts(self, counts: Sequence[int], others: int) -> Positions:
        """Random images, so many of each class, of a client beside ``others``."""
        members = split.class_members(self.labels)
        sizes = list(map(len, members))
        fits = len(counts) == len(sizes) and all(0 <= n <= size for n, size in zip(counts, sizes, strict=True))
        if not fits or not 0 < sum(counts) <= len(self.labels) - others:
            raise DataError(
                f"data.labelled_histogram={list(counts)}: give a number of images for each class, up to {sizes}, one "
                f"image at least, and leave {others} for the other clients"
            )
        for positions in members:
            self.rng.shuffle(positions)
        return np.concatenate([positions[:n] for positions, n in zip(members, counts, strict=True)])


def _check_options(options: Options, unknown: int, named: NamedClients | None) -> None:
    """Refuse options that do not suit ``unknown`` images without a label, or clients that are given."""
    if named is not None:
        if (clients := len(named.names)) != options["num_clients"]:
            where = options["partition_file"] or "the data set"
            raise DataError(f"{where} has {clients} clients; give --data.num_clients {clients}")
        for name in ("labelled_from", "labelled_histogram", "labelled_partition"):
            if options[name] is not None:
                raise ConfigError(f"data.{name} has no effect on clients that are given: leave it out")
        if named.labelled is not None:
            names = label_options(options)
            names += ["unlabelled_only"] if options["unlabelled_only"] else []
            names += ["scenario=server"] if options["scenario"] == "server" else []
            if names:
                what = f"data.{names[0]} has no effect, since {options['partition_file']} says which images have labels"
                raise ConfigError(f"{what}: leave it out")
    if unknown and options["hidden_labels"] != "hidden":
        what = f"data.hidden_labels={options['hidden_labels']} needs the labels of all images"
        raise ConfigError(f"{what}, and {unknown} training images have none: leave it out")
    if options["unlabelled_only"] and not unknown:
        raise ConfigError("data.unlabelled_only has no effect: every training image has a label. Leave it out")


def _with_unknown(
    partition: Partition, options: Options, unknown: Positions, named: NamedClients | None, seed: int
) -> Partition:
    """Add images without a label: to the clients that own them, or in equal numbers, at random, to those without labels
    (``partial_clients``, if there are any) or to all.
    """
    added = [NOTHING] * partition.num_clients
    if named is not None:
        added = [unknown[named.owners[unknown] == client] for client in range(len(added))]
        unknown = NOTHING if named.sha256 else unknown[named.owners[unknown] == NOBODY]
    takers = [client for client, part in enumerate(partition.labelled) if not len(part)]
    if options["scenario"] != "partial_clients" or not takers:
        takers = list(range(len(added)))
    rng = RandomState(streams.derive_seed(seed, "unlabelled") % 2**32)
    for client, part in zip(takers, np.array_split(rng.permutation(unknown), len(takers)), strict=True):
        added[client] = np.concatenate([added[client], part])
    unlabelled = [np.concatenate(pair) for pair in zip(partition.unlabelled, added, strict=True)]
    return replace(partition, unlabelled=unlabelled, pool=np.concatenate([partition.pool, *added]))


def _rest(labels: split.Labels, taken: Sequence[Positions]) -> Positions:
    """Return the positions not in ``taken``, ascending."""
    return np.setdiff1d(np.arange(len(labels)), np.concatenate(taken))
