import hashlib
import struct

import numpy as np
import pytest
from numpy.random import RandomState

from datamodules.common.errors import DataError
from datamodules.partition.partition import Partition, labelled_sets, unlabelled_sets
from datamodules.partition.split import labelled_pool
from label_pools import drawn, lists

small_labels = np.arange(120) % 4


def spread(seed, **options):
    return drawn(small_labels, 3, seed, scenario="all_clients", partition="iid", **options)


def test_hash_is_the_sha256_of_lengths_and_values():
    tiny = Partition(([0, 2], []), ([], [3, 1]), [], [1, 3])
    numbers = [2, *(2, 0, 2), 0, 0, *(2, 3, 1), 0, *(2, 1, 3)]
    content = b"fssl-bench partition 1" + struct.pack(f"<{len(numbers)}q", *numbers)
    assert tiny.hash == hashlib.sha256(content).hexdigest()


def test_histogram_of_both_roles():
    labels = np.array([0, 1, 2, 2, 1, 0])
    partition = Partition(([0, 3], []), ([], [1, 4, 5]), [2], [1, 4, 5])
    assert partition.histogram(labels, 4).tolist() == [[1, 0, 1, 0], [1, 2, 0, 0]]
    assert partition.histogram(labels, 4, "labelled").tolist() == [[1, 0, 1, 0], [0, 0, 0, 0]]
    assert partition.histogram(labels, 4, "unlabelled").tolist() == [[0, 0, 0, 0], [1, 2, 0, 0]]


# --- labelled samples among the unlabelled ones


def test_unlabelled_sets_by_the_released_index():
    """The place in the labelled pool as it was drawn, class by class, is the place in the unlabelled pool."""
    partition = spread(3, num_labels=28)
    stored, pool = labelled_pool(small_labels, 7, RandomState(3), order="dataset")
    assert partition.labelled_pool.tolist() == stored.tolist() != sorted(stored)
    assert partition.pool.tolist() == pool.tolist()
    sets = unlabelled_sets(partition, "code_index")
    for own, labelled, joint in zip(partition.unlabelled, partition.labelled, sets, strict=True):
        front = [pool[stored.tolist().index(position)] for position in labelled]
        assert joint.tolist() == [*front, *own]


def test_the_released_index_needs_a_labelled_pool():
    for options in ({"label_fraction": 0.3}, {"num_labels": 72}):
        lacking = spread(3, **options)
        with pytest.raises(DataError, match=r"labelled pool.*num_labels.*union_mode"):
            unlabelled_sets(lacking, "code_index")


# --- labelled samples that a client has twice


def test_released_clients_have_their_second_class_twice():
    """If the first two classes have as many labels each, and not as many images: about three in four clients."""
    labels = RandomState(0).permutation(np.repeat(np.arange(10), 5000))  # as many as CIFAR-10's
    part = drawn(labels, 100, 0, scenario="all_clients", labels_per_class=5, beta=0.5)
    twice = 0
    counts, all_counts = (part.histogram(labels, 10, role) for role in ("labelled", "all"))
    for k, found in enumerate(labelled_sets(part, labels, "second_class")):
        first, second = np.flatnonzero(all_counts[k])[:2]
        repeats = counts[k, first] == counts[k, second] and all_counts[k, first] != all_counts[k, second]
        again = part.labelled[k][labels[part.labelled[k]] == second] if repeats else []
        assert found.tolist() == [*part.labelled[k], *again]
        twice += bool(repeats)
    assert 60 <= twice <= 90
    one = Partition(([0],), ([2, 4],), [], [2, 4])
    assert lists(labelled_sets(one, [3, 0, 3, 0, 3], "second_class")) == [[0]]  # no second class
