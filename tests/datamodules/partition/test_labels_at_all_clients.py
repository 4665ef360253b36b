"""FedDure's settings: partitions of a labelled and an unlabelled pool, and the views of its images."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import RandomState

from datamodules.digits import Digits
from datamodules.fashion_mnist import FashionMNIST
from datamodules.io.sources import Arrays
from datamodules.partition.partition import Partition, labelled_sets
from federations import make_data

LABELS = RandomState(0).permutation(np.repeat(np.arange(10), 5000))  # as many as CIFAR-10's


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
