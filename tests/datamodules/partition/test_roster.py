"""The schedule of participants: a function of the round, fair, and equal to the published ones."""

import random

import numpy as np
import pytest

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from golden_files import load


@pytest.mark.parametrize("rule", ["uniform", "numpy_round"])
def test_a_sample_depends_on_the_round_alone(rule):
    """Not on the rounds asked for before, nor on other instances; ids are distinct and ascending."""
    roster, fresh = (Roster(50, (0,), 7, 10, rule) for _ in range(2))
    forward = [roster.sample(r) for r in range(20)]
    backward = [fresh.sample(r) for r in reversed(range(20))][::-1]
    assert forward == backward
    assert len({tuple(s) for s in forward}) == 20
    assert all(s == sorted(set(s)) and len(s) == 10 and s[0] >= 0 and s[-1] < 50 for s in forward)


def test_numpy_round_draws_the_published_clients():
    """The first three rounds of FedDure's released code."""
    published = [[26, 86, 2, 55, 75], [80, 84, 33, 81, 93], [83, 30, 56, 24, 16]]
    roster = Roster(100, tuple(range(100)), participants=5, rule="numpy_round")
    assert [roster.sample(r) for r in range(3)] == [sorted(clients) for clients in published]


def test_numpy_run_draws_the_published_clients_in_their_order():
    """The first five rounds of SAGE's and ProxyFL's released codes, in whichever order rounds are asked for."""
    published = load("allclients/client_sampling")["cases"][0]
    given, expected = published["inputs"], published["outputs"]
    for rounds in (range(5), reversed(range(5))):
        roster = Roster(given["clients"], (), given["seed"], given["online"], "numpy_run")
        assert {r: roster.sample(r) for r in rounds} == dict(enumerate(expected))
    assert Roster(20, (), 8, 8, "numpy_run").sample(0) != expected[0]


def test_uniform_is_fair():
    """Over 600 rounds each of 20 clients is drawn 150 times, give or take five standard deviations; so are pairs."""
    roster, counts, together = Roster(20, (), 3, 5), np.zeros(20), 0
    for number in range(600):
        drawn = roster.sample(number)
        counts[drawn] += 1
        together += 0 in drawn and 1 in drawn
    assert counts.sum() == 3_000
    assert np.abs(counts - 150).max() < 5 * (600 * 0.25 * 0.75) ** 0.5
    pairs = 600 * (5 * 4) / (20 * 19)
    assert abs(together - pairs) < 5 * pairs**0.5


def test_subsets_are_those_of_pythons_generator():
    """As many ``random.sample`` calls as the released code makes, in whichever order rounds are asked for."""
    rng = random.Random(11)
    expected = [[rng.sample(range(10), 5) for _ in range(3)] for _ in range(6)]
    roster = Roster(10, (0,), seed=11)
    assert roster.subsets(5, 3, 5) == expected[5]
    roster.subsets(2, 4, 4)  # another size draws from a stream of its own
    assert [roster.subsets(i, 3, 5) for i in range(6)] == expected
    assert roster.subsets(0, 1, 10)[0] != sorted(roster.subsets(0, 1, 10)[0])


def test_shuffled_participants():
    roster = Roster(20, (0,), seed=3, participants=6)
    orders = [roster.shuffled(number) for number in range(50)]
    assert [sorted(order) for order in orders] == [roster.sample(number) for number in range(50)]
    assert orders == [roster.shuffled(number) for number in range(50)]
    assert sum(order == sorted(order) for order in orders) <= 2
    assert Roster(20, (0,), seed=4, participants=6).shuffled(0) != orders[0]


def test_bad_rosters():
    with pytest.raises(ConfigError, match="unknown rule 'fair'; choose one of uniform, numpy_round, numpy_run"):
        Roster(10, (0,), rule="fair")
    with pytest.raises(ConfigError, match="subsets of 11 clients from 10: choose subsets of 1 to 10"):
        Roster(10, (0,)).subsets(0, 3, 11)
