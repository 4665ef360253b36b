import hashlib
import json
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


def test_saved_partitions_come_back_and_have_equal_bytes(tmp_path):
    small().save(tmp_path / "one.json")
    small().save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    loaded = Partition.load(tmp_path / "one.json", small_labels)
    assert loaded.hash == small().hash
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.json", "two.json"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "JSONDecodeError"),
        (lambda text: text.replace("partition 1", "partition 9"), "expected 'fssl-bench partition 1'"),
        (lambda text: json.dumps({**json.loads(text), "server": [3]}), "does not match its hash"),
    ],
)
def test_damaged_partition_files_give_one_error(tmp_path, damage, message):
    path = tmp_path / "broken.json"
    small().save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=rf"broken\.json: .*{message}.*intact copy"):
        Partition.load(path, small_labels)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((([0, 9],), ([],), [], []), "assigns position 9, but there are 9 samples"),
        ((([],), ([-1],), [], []), "assigns position -1"),
        ((([1], [2, 1]), ([], []), [], []), "sample 1 twice"),
        ((([3],), ([],), [3], []), "sample 3 twice"),
        ((([],), ([],), [5], [5]), "sample 5 .* although it is labelled"),
        ((([],), ([],), [], [5, 5]), "sample 5 in the unlabelled pool twice"),
        ((([],), ([5, 6],), [], [6]), "not have sample 5 in the unlabelled pool"),
        ((([0, 1],), ([2],), [], [2, 3], [0, 1, 1]), "sample 1 in the labelled pool twice"),
        ((([0, 1],), ([2],), [], [2, 3], [0, 1, 2]), "sample 2 in both pools"),
        ((([0, 1],), ([2],), [], [2, 3], [0, 4]), "not have sample 1 in the labelled pool"),
    ],
)
def test_validate_names_the_sample(fields, message):
    with pytest.raises(DataError, match=message):
        Partition(*fields).validate(9)


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


def test_the_released_index_needs_a_labelled_pool(tmp_path):
    """It travels with a saved partition; without it there is no place to look up."""
    path = tmp_path / "split.json"
    whole = spread(3, num_labels=28)
    whole.save(path, small_labels)
    loaded = Partition.load(path, small_labels)
    for ours, theirs in zip(unlabelled_sets(loaded, "code_index"), unlabelled_sets(whole, "code_index"), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert loaded.hash == whole.hash == Partition(whole.labelled, whole.unlabelled, whole.server, whole.pool).hash
    for options in ({"label_fraction": 0.3}, {"num_labels": 72}):
        lacking = spread(3, **options)
        with pytest.raises(DataError, match=r"labelled pool.*num_labels.*union_mode"):
            unlabelled_sets(lacking, "code_index")
