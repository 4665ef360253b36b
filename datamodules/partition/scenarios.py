"""One draw of a `Partition`: some clients hold labels, the server does, or all clients do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import RandomState

from datamodules.common.errors import ConfigError, DataError
from datamodules.partition.lists import NOTHING, Positions
from datamodules.partition.partition import Partition
from datamodules.partition.split import (
    Labels,
    class_members,
    dirichlet,
    dirichlet_per_client,
    iid,
    labelled_pool,
    pairs,
    pick_labelled,
)

Options = Mapping[str, Any]
"""Options of ``FSSLDataModule`` by name (documented there)."""


@dataclass(frozen=True)
class Draw:
    """Draws partitions, one after the other from one generator.

    Args:
        options: options of the data module.
        labels: class of every training image, int64 [N].
        rng: legacy generator.
        owners: client of every training image, int64 [N], if clients are given; these keep their numbers.
    """

    options: Options
    labels: Labels
    rng: RandomState
    owners: Positions | None = None

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
            remainder, stratified = o["iid_remainder"], o["iid_stratified"]
            parts = iid(labels, num_clients, rng, remainder, o["iid_permutations"], stratified)
        elif kind == "pairs":
            parts = pairs(labels, num_clients, o["beta"], rng, o["split_classes"])
        else:
            rule = dirichlet if o["partition_variant"] == "per_class" else dirichlet_per_client
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
        clients, labelled, before = o["num_clients"], o["labelled_clients"], o["labelled_from"]
        if not 1 <= labelled <= clients:
            raise DataError(f"labelled_clients must be 1 to {clients} (all clients), got {labelled}")
        picked = o["picked"] or (labelled if labelled < clients else 1)
        if before not in (None, clients) and picked >= clients:
            raise ConfigError(
                f"labelled_from={before} spreads all other images over the clients that are not picked, and "
                f"picked={picked} of {clients} clients leaves none: pick fewer, or leave labelled_from out"
            )
        chosen: Sequence[int] = range(labelled)
        if (histogram := o["labelled_histogram"]) is not None:
            if picked != 1 or before is not None or clients == 1:
                raise ConfigError(
                    "labelled_histogram defines the only picked client: leave out labelled_from, set picked=1, and "
                    "have 2 clients or more"
                )
            parts = [self._with_counts(histogram, clients - 1)]
        else:
            parts = self.spread(np.arange(len(labels)), before or clients)
            if self.owners is None:
                parts = [parts[k] for k in pick_labelled(parts, labels, o["labelled_pick"], picked, rng)]
                parts = parts if len(parts) == clients else parts[:picked]
            else:
                chosen = pick_labelled(parts, labels, o["labelled_pick"], labelled, rng)[:labelled].tolist()
        if len(parts) < clients:
            parts += self.spread(_rest(labels, parts), clients - len(parts))
        return Partition(
            [part if k in chosen else NOTHING for k, part in enumerate(parts)],
            [NOTHING if k in chosen else part for k, part in enumerate(parts)],
            NOTHING,
            _rest(labels, [parts[k] for k in chosen]),
        )

    def _labels_at_server(self) -> Partition:
        """Give the server ``num_labels`` class-balanced labelled images and spread all others over the clients."""
        clients, count = self.options["num_clients"], self.options["num_labels"]
        if not count:
            raise ConfigError(
                "scenario 'server', which needs num_labels: give data.num_labels, or choose another scenario; with "
                "images without a label, data.unlabelled_only true gives the server all labels"
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
        ways = ("num_labels", "label_fraction", "labels_per_class")
        given = [name for name in ways if o[name] is not None]
        if len(given) != 1 or (o["labelled_partition"] and o["num_labels"] is None):
            said = ", ".join(f"{name}={o[name]}" for name in (*ways, "labelled_partition"))
            raise ConfigError(
                "labels at all clients need one of data.num_labels (with data.labelled_partition or without), "
                f"data.label_fraction and data.labels_per_class; {said}: set the others to null"
            )
        if o["num_labels"] is not None:
            in_order = o["labelled_pool_order"] == "dataset"
            labelled, pool = self._pools(o["num_labels"], by_class=in_order or o["partition"] == "pairs")
            first = self.spread(labelled, clients, o["labelled_partition"])
            return Partition(first, self.spread(pool, clients), NOTHING, pool, labelled_pool=labelled)
        first, second = [], []
        for part in self.spread(np.arange(len(self.labels)), clients):
            if o["labels_per_class"] is not None:
                own, count = self._first_of_each_class(part)
            else:
                own, count = self.rng.permutation(part), max(1, round(o["label_fraction"] * len(part)))
            first.append(own[:count])
            second.append(own[count:])
        return Partition(first, second, NOTHING, _rest(self.labels, first))

    def _pools(self, num_labels: int, by_class: bool) -> tuple[Positions, Positions]:
        """The labelled pool and the unlabelled one; see ``labelled_pool``."""
        classes = int(self.labels.max()) + 1
        if num_labels < classes or num_labels % classes:
            near = max(num_labels // classes, 1) * classes
            way = f"choose {near} or {near + classes}"
            raise DataError(f"num_labels={num_labels} is not a multiple of {classes} classes: {way}")
        rng = self.rng if self.options["labelled_pool_order"] == "shuffled" else None
        return labelled_pool(self.labels, num_labels // classes, rng, "class" if by_class else "dataset")

    def _first_of_each_class(self, part: Positions) -> tuple[Positions, int]:
        """A client's images, the first of every class in front, and the number of these."""
        own, count = self.labels[part], self.options["labels_per_class"]
        late = np.ones(len(part), dtype=bool)
        for k in np.unique(own):
            late[np.flatnonzero(own == k)[:count]] = False
        return part[np.argsort(late, kind="stable")], int(len(part) - late.sum())

    def _with_counts(self, counts: Sequence[int], others: int) -> Positions:
        """Random images, so many of each class, of a client beside ``others``."""
        members = class_members(self.labels)
        most = list(map(len, members))
        fits = len(counts) == len(most) and all(0 <= n <= there for n, there in zip(counts, most, strict=True))
        if not fits or not 0 < sum(counts) <= len(self.labels) - others:
            raise DataError(
                f"data.labelled_histogram={list(counts)}: give a number of images for each class, up to {most}, one "
                f"image at least, and leave {others} for the other clients"
            )
        for positions in members:
            self.rng.shuffle(positions)
        return np.concatenate([positions[:n] for positions, n in zip(members, counts, strict=True)])


def _rest(labels: Labels, taken: Sequence[Positions]) -> Positions:
    """Return the positions not in ``taken``, ascending."""
    left = np.ones(len(labels), dtype=bool)
    left[np.concatenate(taken)] = False
    return np.flatnonzero(left)
