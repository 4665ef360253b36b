"""Dirichlet draws by class, by client and by pairs of clients: released lists, law, and impossible requests."""

from functools import partial

import numpy as np
import pytest
from numpy.random import RandomState

from datamodules.common.errors import DataError
from datamodules.partition import split as split_module
from datamodules.partition.split import dirichlet, dirichlet_per_client, labelled_pool, pairs
from golden_files import load
from label_pools import lists, sorted_labels

RELEASED = load("feddb/dirichlet_split")["cases"]

unshuffled = partial(dirichlet, shuffle=False)


class Replay:
    """A generator whose Dirichlet draws are given, in float32 as recorded."""

    def __init__(self, shares):
        self.shares = [np.array(row, dtype=np.float32) for row in shares]
        self.used = 0

    def dirichlet(self, concentration):
        self.used += 1
        return self.shares[self.used - 1]


class Counting(RandomState):
    draws = 0

    def dirichlet(self, *args):
        self.draws += 1
        return super().dirichlet(*args)


@pytest.mark.parametrize("case", load("rscfed/dirichlet_small")["cases"][:2], ids=["one pass", "three passes"])
def test_dirichlet_reproduces_the_released_lists_and_leaves_the_generator_in_step(case):
    rng = Counting(case["seed"])
    parts = dirichlet(case["labels"], case["num_clients"], case["beta"], rng, min_size=case["min_size"])
    assert lists(parts) == case["parts"]
    assert [rng.rand(), rng.rand()] == case["next_uniforms"]
    assert rng.draws == 4 * case["passes"]


def test_a_shorter_class_loop_leaves_the_later_classes_out_but_keeps_the_cap():
    case = load("rscfed/dirichlet_small")["cases"][2]
    labels = np.array(case["labels"])
    parts = dirichlet(
        labels, case["num_clients"], case["beta"], RandomState(case["seed"]), num_classes=case["num_classes"]
    )
    assert [len(part) for part in parts] == case["sizes"]
    assert set(labels[np.concatenate(parts)]) == {0, 1, 2}


@pytest.mark.parametrize("case", RELEASED, ids=lambda case: case["name"])
def test_dirichlet_without_shuffles_reproduces_the_released_lists(case):
    rng = Replay(case["shares"])
    parts = unshuffled(case["labels"], case["num_clients"], 0.1, rng, min_size=1)
    assert rng.used == case["draws_used"]
    assert lists(parts) == case["parts"]


# --- Law and statistics


@pytest.mark.parametrize("beta", [1e-3, 1e-6, 1e-300])
def test_vanishing_shares_give_each_class_to_one_open_client(beta):
    labels = np.arange(600) % 60
    parts = unshuffled(labels, 6, beta, RandomState(0), min_size=1)
    assert sorted(np.concatenate(parts)) == list(range(600))
    if beta < 1e-4:
        assert [len(part) for part in parts] == [100] * 6
        assert all(len(np.unique(labels[part])) == 10 for part in parts)


@pytest.mark.parametrize(
    ("num_clients", "options", "message"),
    [
        (0, {}, "cannot spread 50 samples over 0 clients"),
        (6, {}, "cannot give each of 6 clients min_size=10 or more of 50 samples: choose fewer"),
        (5, {"beta": 0.01}, "no Dirichlet partition .* beta=0.01 .* in 20 attempts: choose fewer"),
    ],
)
def test_impossible_dirichlet_requests_name_values_and_remedy(monkeypatch, num_clients, options, message):
    monkeypatch.setattr(split_module, "MAX_ATTEMPTS", 20)
    with pytest.raises(DataError, match=message):
        dirichlet(np.arange(50) % 3, num_clients, rng=RandomState(0), **{"beta": 0.5, **options})


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
