"""Equal shares, labelled pools and labelled clients; Dirichlet draws: ``test_dirichlet.py``."""

import numpy as np
import pytest
from numpy.random import RandomState

from datamodules.common.errors import DataError
from datamodules.partition.split import dirichlet, iid, labelled_pool, pick_labelled
from golden_files import load
from label_pools import lists


def test_split_primitives_reproduce_the_released_lists():
    cases = {case["name"]: case for case in load("feddure/split_primitives")["cases"]}
    for name, permutations in (("equal_division", 1), ("iid", 2)):
        case = cases[name]
        labels = np.zeros(case["num_samples"], dtype=int)
        parts = iid(labels, case["num_clients"], RandomState(case["seed"]), remainder="last", permutations=permutations)
        assert lists(parts) == case["parts"]
    case = cases["dirichlet"]
    parts = dirichlet(
        case["labels"], case["num_clients"], case["beta"], RandomState(case["seed"]), min_size=case["min_size"]
    )
    assert lists(parts) == case["parts"]


def test_labelled_pool_refuses_more_labels_than_a_class_has():
    with pytest.raises(DataError, match="cannot label 3 samples of class 1: it has 2"):
        labelled_pool(np.array([0, 0, 0, 1, 1]), 3)


# --- labelled clients


LABELS = np.array([0, 1, 2] * 10)
PARTS = [
    np.array([0, 3, 6, 9, 12, 15, 18, 21, 24, 27]),  # size 10 = N/K, class 0 only
    np.array([1, 4, 7, 10]),  # class 1 only
    np.array([2, 5, 8, 11, 14, 17, 20, 13, 16]),  # classes 1, 2; 9 samples
]
COMPLETE = [np.array([0, 1, 2]), np.arange(3, 12), np.arange(12, 24), np.arange(24, 30)]


@pytest.mark.parametrize(
    ("parts", "count", "order"),
    [
        (PARTS, 1, [2, 1, 0]),  # nobody is complete: most classes
        (PARTS, 2, [2, 0, 1]),  # then sizes 10 and 4 with one class: closer to 10 first
        (PARTS, 0, [0, 1, 2]),
        (COMPLETE, 1, [1, 0, 2, 3]),  # N/K = 7.5; distances 4.5, 1.5, 4.5, 1.5: the lower id wins
        (COMPLETE, 2, [1, 3, 2, 0]),
        (COMPLETE, 4, [1, 3, 0, 2]),
    ],
)
def test_all_classes_closest(parts, count, order):
    assert pick_labelled(parts, LABELS, "all_classes_closest", count, RandomState(0)).tolist() == order


def test_a_complete_client_beats_a_closer_one_that_misses_a_class():
    parts = [np.arange(0, 30, 3), np.array([1, 2, 3]), np.array([4, 5, 7, 8, 10, 11])]
    assert pick_labelled(parts, LABELS, "all_classes_closest", 1, RandomState(0)).tolist() == [1, 0, 2]
