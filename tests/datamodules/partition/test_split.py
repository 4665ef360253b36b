"""Draws that spread samples and choose labelled clients: released lists, law, and impossible requests."""

import numpy as np
import pytest
from numpy.random import RandomState

from datamodules.common.errors import DataError
from datamodules.partition import split as split_module
from datamodules.partition.split import dirichlet, dirichlet_per_client, iid, labelled_pool, pairs, pick_labelled
from golden_files import load
from label_pools import lists, sorted_labels

RELEASED = load("feddb/dirichlet_split")["cases"]


class Replay:
    """A generator whose Dirichlet draws are given, in float32 as recorded."""

    def __init__(self, shares):
        self.shares = [np.array(row, dtype=np.float32) for row in shares]
        self.used = 0

    def dirichlet(self, concentration):
        self.used += 1
        return self.shares[self.used - 1]


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


def test_there_are_as_many_samples_as_clients_at_least():
    with pytest.raises(DataError, match="cannot spread 3 samples over 4 clients: choose fewer"):
        iid(np.zeros(3, dtype=int), 4, RandomState(0))


# --- labelled clients


LABELS = np.array([0, 1, 2] * 10)
PARTS = [
    np.array([0, 3, 6, 9, 12, 15, 18, 21, 24, 27]),  # size 10 = N/K, class 0 only
    np.array([1, 4, 7, 10]),  # class 1 only
    np.array([2, 5, 8, 11, 14, 17, 20, 13, 16]),  # classes 1, 2; 9 samples
]
INCOMPLETE = [np.arange(0, 30, 3), np.array([1, 2, 3]), np.array([4, 5, 7, 8, 10, 11])]
COMPLETE = [np.array([0, 1, 2]), np.arange(3, 12), np.arange(12, 24), np.arange(24, 30)]


@pytest.mark.parametrize(
    ("parts", "count", "order"),
    [
        (PARTS, 1, [2, 1, 0]),  # nobody is complete: most classes
        (PARTS, 2, [2, 0, 1]),  # then sizes 10 and 4 with one class: closer to 10 first
        (PARTS, 0, [0, 1, 2]),
        (INCOMPLETE, 1, [1, 0, 2]),  # a complete client beats a closer one that misses a class
        (COMPLETE, 1, [1, 0, 2, 3]),  # N/K = 7.5; distances 4.5, 1.5, 4.5, 1.5: the lower id wins
        (COMPLETE, 2, [1, 3, 2, 0]),
        (COMPLETE, 4, [1, 3, 0, 2]),
    ],
)
def test_all_classes_closest(parts, count, order):
    assert pick_labelled(parts, LABELS, "all_classes_closest", count, RandomState(0)).tolist() == order


# --- Dirichlet draws


@pytest.mark.parametrize("case", load("rscfed/dirichlet_small")["cases"][:2], ids=["one pass", "three passes"])
def test_dirichlet_reproduces_the_released_lists_and_leaves_the_generator_in_step(case):
    rng = RandomState(case["seed"])
    parts = dirichlet(case["labels"], case["num_clients"], case["beta"], rng, min_size=case["min_size"])
    assert lists(parts) == case["parts"]
    assert [rng.rand(), rng.rand()] == case["next_uniforms"]


def test_a_shorter_class_loop_leaves_the_later_classes_out_but_keeps_the_cap():
    case = load("rscfed/dirichlet_small")["cases"][2]
    labels = np.array(case["labels"])
    rng = RandomState(case["seed"])
    parts = dirichlet(labels, case["num_clients"], case["beta"], rng, num_classes=case["num_classes"])
    assert [len(part) for part in parts] == case["sizes"]
    assert set(labels[np.concatenate(parts)]) == {0, 1, 2}


@pytest.mark.parametrize("case", RELEASED, ids=lambda case: case["name"])
def test_dirichlet_without_shuffles_reproduces_the_released_lists(case):
    rng = Replay(case["shares"])
    parts = dirichlet(case["labels"], case["num_clients"], 0.1, rng, min_size=1, shuffle=False)
    assert rng.used == case["draws_used"]
    assert lists(parts) == case["parts"]


# --- Law and statistics


@pytest.mark.parametrize("beta", [1e-3, 1e-6, 1e-300])
def test_vanishing_shares_give_each_class_to_one_open_client(beta):
    labels = np.arange(600) % 60
    parts = dirichlet(labels, 6, beta, RandomState(0), min_size=1, shuffle=False)
    assert sorted(np.concatenate(parts)) == list(range(600))
    if beta < 1e-4:
        assert [len(part) for part in parts] == [100] * 6
        assert all(len(np.unique(labels[part])) == 10 for part in parts)


def test_impossible_dirichlet_requests_name_values_and_remedy(monkeypatch):
    monkeypatch.setattr(split_module, "MAX_ATTEMPTS", 20)
    labels, rng = np.arange(50) % 3, RandomState(0)
    with pytest.raises(
        DataError, match="cannot give each of 6 clients min_size=10 or more of 50 samples: choose fewer"
    ):
        dirichlet(labels, 6, 0.5, rng)
    with pytest.raises(DataError, match=r"no Dirichlet partition .* beta=0.01 .* in 20 attempts: choose fewer"):
        dirichlet(labels, 5, 0.01, rng)


# --- By client


def test_the_classes_of_a_client_follow_a_dirichlet_multinomial_law_around_the_prior():
    """n images by q ~ Dir(beta p): mean n p, variance n p (1 - p) (n + beta) / (1 + beta). The first client meets full
    classes; n = 10 of 100 samples, beta 2, p = (.6, .3, .1).
    """
    prior, beta, size, draws = np.array([0.6, 0.3, 0.1]), 2.0, 10, 1000
    labels = sorted_labels([60, 30, 10])
    rng = RandomState(0)
    made = [dirichlet_per_client(labels, 10, beta, rng)[0] for _ in range(draws)]
    counts = np.array([np.bincount(labels[part], minlength=3) for part in made])
    variance = size * prior * (1 - prior) * (size + beta) / (1 + beta)
    assert counts.mean(axis=0) == pytest.approx(size * prior, abs=4 * float(np.sqrt(variance.max() / draws)))
    assert counts.var(axis=0, ddof=1) == pytest.approx(variance, rel=0.2)


@pytest.mark.parametrize("beta", [1e-3, 1e-300])
def test_a_vanishing_beta_gives_every_client_one_class_until_it_is_used_up(beta):
    """Clients take whole classes, and go on to another one where a class has too few left."""
    labels = sorted_labels([90, 60, 30])
    parts = dirichlet_per_client(labels, 6, beta, RandomState(1))
    assert [len(np.unique(labels[part])) for part in parts] == [1] * 6
    assert sorted(np.concatenate(parts)) == list(range(180))
    parts = dirichlet_per_client(sorted_labels([25, 25]), 5, beta, RandomState(1))
    assert [len(part) for part in parts] == [10] * 5


# --- By pairs of clients


@pytest.mark.parametrize("case", load("allclients/partition")["cases"], ids=["small", "CIFAR-10"])
def test_pairs_reproduce_the_released_partition(case):
    """Of CIFAR-10 the class counts, which do not depend on the order of its images."""
    given, out = case["inputs"], case["outputs"]
    small = given["classes"] == 5
    labels = np.array([(7 * i + i // 9) % 5 for i in range(300)]) if small else sorted_labels([5000] * 10)
    pools = labelled_pool(labels, given["labelled_per_class"], RandomState(given["numpy_global_seed"]))
    for role, pool in zip(("labelled", "unlabelled"), pools, strict=True):
        parts = pairs(labels[pool], given["clients"], given["alpha"], RandomState(given["dirichlet_seed"]))
        counts = [np.bincount(labels[pool[part]], minlength=given["classes"]).tolist() for part in parts]
        assert counts == out[f"class_counts_{role}"]
        if small:
            assert lists(pool[part] for part in parts) == out[role]


def test_pairs_leave_later_classes_to_nobody():
    labels = np.arange(90) % 3
    parts = pairs(labels, 4, 1.0, RandomState(0), num_classes=2)
    assert sorted(np.concatenate(parts)) == np.flatnonzero(labels < 2).tolist()
