import hashlib
import struct

import numpy as np
import pytest
from numpy.random import RandomState

from datamodules.common.errors import DataError
from datamodules.partition.partition import Partition, unlabelled_sets
from datamodules.partition.split import labelled_pool
from label_pools import drawn

small_labels = np.arange(120) % 4


def spread(seed, **options):
    return drawn(small_labels, 3, seed, scenario="all_clients", partition="iid", **options)


def small():
    return spread(0, num_labels=24)


def test_hash_is_the_sha256_of_lengths_and_values():
    tiny = Partition(([0, 2], []), ([], [3, 1]), [], [1, 3])
    numbers = [2, *(2, 0, 2), 0, 0, *(2, 3, 1), 0, *(2, 1, 3)]
    content = b"fssl-bench partition 1" + struct.pack(f"<{len(numbers)}q", *numbers)
    assert tiny.hash == hashlib.sha256(content).hexdigest()


def test_positions_are_read_only_copies():
    source = np.array([0, 1])
    partition = Partition((source,), ([],), [], [])
    source[0] = 7
    assert partition.labelled[0].tolist() == [0, 1] and partition.unlabelled[0].dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        partition.labelled[0][0] = 5


def test_histogram_of_both_roles():
    labels = np.array([0, 1, 2, 2, 1, 0])
    partition = Partition(([0, 3], []), ([], [1, 4, 5]), [2], [1, 4, 5])
    assert partition.histogram(labels, 4).tolist() == [[1, 0, 1, 0], [1, 2, 0, 0]]
    assert partition.histogram(labels, 4, "labelled").tolist() == [[1, 0, 1, 0], [0, 0, 0, 0]]
    assert partition.histogram(labels, 4, "unlabelled").tolist() == [[0, 0, 0, 0], [1, 2, 0, 0]]


# --- labelled samples among the unlabelled ones


def test_unlabelled_sets_begin_with_the_labelled_samples():
    partition = small()
    assert [s.tolist() for s in unlabelled_sets(partition)] == [s.tolist() for s in partition.unlabelled]
    for own, labelled, joint in zip(
        partition.unlabelled, partition.labelled, unlabelled_sets(partition, "labelled"), strict=True
    ):
        assert joint.tolist() == [*labelled, *own]


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
