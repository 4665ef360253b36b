"""FedDure's settings: partitions of a labelled and an unlabelled pool, and the views of its images."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import RandomState

from datamodules.digits import Digits
from datamodules.fashion_mnist import FashionMNIST
from datamodules.io.sources import Arrays
from datamodules.partition.partition import Partition, labelled_sets
from datamodules.partition.split import dirichlet, iid
from federations import make_data

LABELS = RandomState(0).permutation(np.repeat(np.arange(10), 5000))  # as many as CIFAR-10's
IID = partial(iid, remainder="last", permutations=2)
DIR = partial(dirichlet, beta=0.5, min_size=10)


def released(labels: np.ndarray, labelled: str, unlabelled: str, seed: int) -> tuple[list[Any], list[Any]]:
    """Both partitions with NumPy's global generator, written out call by call."""
    state = np.random.get_state()
    np.random.seed(seed)
    pools: list[list[int]] = [[], []]
    for c in range(10):
        members = [i for i, y in enumerate(labels) if y == c]
        pools[0] += members[:500]
        pools[1] += members[500:]
    parts = []
    for pool, kind in zip(pools, (labelled, unlabelled), strict=True):
        if kind == "iid":
            order = np.arange(len(pool))
            np.random.shuffle(order)
            np.random.shuffle(order)
            q, r = divmod(len(pool), 100)
            ends = np.cumsum([q] * (100 - r) + [q + 1] * r)[:-1]
            parts.append([np.array(pool)[part] for part in np.split(order, ends)])
            continue
        own = labels[pool]
        smallest = 0
        while smallest < 10:
            clients: list[list[int]] = [[] for _ in range(100)]
            for c in range(10):
                members = np.flatnonzero(own == c)
                np.random.shuffle(members)
                p = np.random.dirichlet(np.repeat(0.5, 100))
                p = np.array([0 if len(held) >= len(pool) / 100 else x for x, held in zip(p, clients, strict=True)])
                cuts = (np.cumsum(p / p.sum()) * len(members)).astype(int)[:-1]
                clients = [a + b.tolist() for a, b in zip(clients, np.split(members, cuts), strict=True)]
            smallest = min(map(len, clients))
        for held in clients:
            np.random.shuffle(held)
        parts.append([np.array(pool)[held] for held in clients])
    np.random.set_state(state)
    return parts[0], parts[1]


class Objects(Digits):
    """Ten classes of 5 000 tiny pictures."""

    def read(self) -> Arrays:
        pixels = np.zeros((len(LABELS), 1, 1, 1), np.uint8)
        return Arrays(pixels, LABELS, pixels[:10], LABELS[:10], tuple("0123456789"), {})

    def _place(self) -> None:
        """No images are needed here."""


def make(seed: int = 0, **args: Any) -> Partition:
    """The data module's partition with the options of the suite."""
    options = {
        "scenario": "all_clients", "num_clients": 100, "num_labels": 5000, "labelled_pool_order": "dataset",
        "iid_remainder": "last", "iid_permutations": 2, "beta": 0.5, "min_size": 10, "partition_seed": seed,
    }  # fmt: skip
    data = Objects(**{**options, **args})
    data.setup()
    return data.partition


SETTINGS = [("iid", "iid"), ("iid", "dirichlet"), ("dirichlet", "dirichlet")]


@pytest.mark.parametrize(("labelled", "unlabelled"), SETTINGS)
def test_settings_position_by_position(labelled: str, unlabelled: str) -> None:
    """Every client's lists, in order, as the released algorithm draws them."""
    ours = make(3, labelled_partition=labelled, partition=unlabelled)
    first, second = released(LABELS, labelled, unlabelled, 3)
    for k in range(100):
        assert ours.labelled[k].tolist() == first[k].tolist()
        assert ours.unlabelled[k].tolist() == second[k].tolist()


def test_one_joint_draw_with_the_first_labels_of_every_class() -> None:
    """Up to five of each present class, in the order of the client's list; the rest has no labels."""
    part = make(num_labels=None, labels_per_class=5, partition="dirichlet")
    counts, all_counts = (part.histogram(LABELS, 10, role) for role in ("labelled", "all"))
    assert (counts == np.minimum(all_counts, 5)).all()
    assert all_counts.sum() == len(LABELS)
    assert 3500 < counts.sum() < 4600
    assert counts.sum(axis=1).min() >= 10
    spread = dirichlet(LABELS, 100, 0.5, RandomState(0), min_size=10)
    for k in (0, 50, 99):
        expected = [i for c in range(10) for i in [j for j in spread[k].tolist() if LABELS[j] == c][:5]]
        assert sorted(part.labelled[k].tolist()) == sorted(expected)
        assert part.unlabelled[k].tolist() == [i for i in spread[k].tolist() if i not in set(expected)]


def test_released_clients_have_their_second_class_twice() -> None:
    """If the first two classes have as many labels each, and not as many images: about three in four clients."""
    part = make(num_labels=None, labels_per_class=5, partition="dirichlet")
    assert [a.tolist() for a in labelled_sets(part, LABELS)] == [a.tolist() for a in part.labelled]
    sets, twice = labelled_sets(part, LABELS, "second_class"), 0
    counts, all_counts = (part.histogram(LABELS, 10, role) for role in ("labelled", "all"))
    for k, found in enumerate(sets):
        first, second = np.flatnonzero(all_counts[k])[:2]
        repeats = counts[k, first] == counts[k, second] and all_counts[k, first] != all_counts[k, second]
        again = part.labelled[k][LABELS[part.labelled[k]] == second] if repeats else []
        assert found.tolist() == [*part.labelled[k], *again]
        twice += bool(repeats)
    assert 60 <= twice <= 90
    one = Partition(([0],), ([2, 4],), [], [2, 4])
    assert [a.tolist() for a in labelled_sets(one, [3, 0, 3, 0, 3], "second_class")] == [[0]]  # no second class


def test_repeated_labels_reach_the_client() -> None:
    """The batches come from the longer list."""
    options = {"num_labels": None, "labels_per_class": 5}
    plain, twice = (make_data("all_clients", **options, labelled_repeats=mode) for mode in ("none", "second_class"))
    assert plain.partition.hash == twice.partition.hash
    longer = [len(twice.client(k).labelled) - len(plain.client(k).labelled) for k in range(plain.num_clients)]
    assert max(longer) == 5
    k = longer.index(5)
    assert len(twice.client(k).labels[-5:].unique()) == 1
    assert set(twice.client(k).labelled[-5:].tolist()) <= set(plain.client(k).labelled.tolist())


# --- views


class Clothes(FashionMNIST):
    """Twenty made-up 28 x 28 pictures."""

    def read(self) -> Arrays:
        pixels = RandomState(0).randint(0, 256, (400, 28, 28, 1)).astype(np.uint8)
        labels = np.arange(400) % 10
        return Arrays(pixels, labels, pixels[:20], labels[:20], tuple("0123456789"), {})


@pytest.mark.parametrize("channels", [3, 1])
def test_grey_images_are_padded_to_32(channels: int) -> None:
    """Two black pixels on every side, three equal channels or one; statistics of the padded images."""
    data = Clothes(
        scenario="all_clients", num_clients=4, num_labels=40, border=2, channels=channels, mean=[0.2190], std=[0.3318],
        pipeline="randaugment_levels_cutout", partition="iid",
    )  # fmt: skip
    data.setup()
    block = dict(data.test_blocks(20))[0]()
    assert block.shape == (20, channels, 32, 32)
    pixels = torch.from_numpy(data.read().test_images[..., 0]).float() / 255
    torch.testing.assert_close(block[:, 0, 2:-2, 2:-2], (pixels - 0.2190) / 0.3318)
    edge = torch.tensor(-0.2190 / 0.3318)
    assert torch.allclose(block[:, :, :2], edge)
    assert torch.allclose(block[..., -2:], edge)
    assert torch.equal(block[:, 0], block[:, -1])
    for name in ("cutout", "zero_crop", "weak", "strong"):
        view = data.take(name, torch.arange(8), torch.Generator().manual_seed(0))
        assert view.shape == (8, channels, 32, 32)
        assert torch.equal(view[:, 0], view[:, -1])
