"""Options become partitions: those of each scenario, with images held back from all or from one role."""

import numpy as np
import pytest

from datamodules.common.errors import ConfigError
from datamodules.partition.draw import Draw, balanced_holdout, labelled_holdout, shares, stream_seed, validation_images
from datamodules.partition.partition import unlabelled_sets
from datamodules.partition.split import labelled_pool, pairs
from federations import SCENARIOS, make_data
from label_pools import assert_sound

SEED = 3
labels = np.random.RandomState(0).permutation(np.arange(600) % 10)


def options(scenario, **changes):
    """The options of a data module of that scenario."""
    return dict(make_data(scenario).hparams) | changes


def draw(options, labels, seed):
    return Draw(options, labels, np.random.RandomState(seed)).partition()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_partition_of_the_rest_is_that_of_a_data_set_without_the_held_images(scenario):
    made = shares(options(scenario, validation=4), labels, SEED)
    rest = np.delete(np.arange(600), made.validation)
    alone = draw(options(scenario), labels[rest], SEED)
    assert_sound(made.partition, 600)
    assert made.partition.hash == alone.moved(rest).hash and len(rest) == 596


def test_a_holdout_leaves_stand_ins_where_they_are():
    """A tuning run meets the unlabelled images of the run that it tunes."""
    made = draw(options("all_clients"), labels, SEED)
    rest = made.without_labelled(labelled_holdout(made, 0.25, SEED))
    assert_sound(rest, 600)
    for before, after, whole, less in zip(
        made.labelled,
        rest.labelled,
        unlabelled_sets(made, "code_index"),
        unlabelled_sets(rest, "code_index"),
        strict=True,
    ):
        stand_in = dict(zip(before, whole, strict=False))
        assert [stand_in[position] for position in after] == less[: len(after)].tolist()


def test_pairs_meet_the_pools_in_the_order_of_their_draw_and_a_generator_of_their_own():
    """SAGE's released code: one generator draws the labelled pool, a fresh one spreads each of the two pools."""
    given = options("all_clients", partition="pairs", labelled_partition=None, beta=0.5, num_labels=60, num_clients=4)
    made = draw(given | {"split_seed": 0}, labels, 7)
    rng = np.random.RandomState(7)
    pools = labelled_pool(labels, 6, rng)
    for pool, role in zip(pools, ("labelled", "unlabelled"), strict=True):
        expected = pairs(labels[pool], 4, 0.5, np.random.RandomState(0))
        assert [part.tolist() for part in getattr(made, role)] == [pool[part].tolist() for part in expected]
    going_on = draw(given, labels, 7)
    first = pairs(labels[pools[0]], 4, 0.5, rng)
    assert [part.tolist() for part in going_on.labelled] == [pools[0][part].tolist() for part in first]
    assert going_on.hash != made.hash


def test_a_named_stream_has_partitions_of_its_own():
    """No name is the seed itself; a seed of NumPy's generator comes out."""
    assert stream_seed(7, None) == 7
    seeds = [stream_seed(seed, name) for seed in (0, 1) for name in ("text/clients", "text/all", "")]
    assert len({0, 1, *seeds}) == 8 and all(0 <= seed < 2**32 for seed in seeds)
    assert stream_seed(0, "text/clients") == 83450096  # frozen: records rest on it


def test_a_balanced_holdout_has_equally_many_of_every_class():
    given = {"balanced_holdout": 50}
    held, again, other = (balanced_holdout(given, labels, seed) for seed in (SEED, SEED, SEED + 1))
    assert np.bincount(labels[held]).tolist() == [5] * 10
    assert held.tolist() == again.tolist() == sorted({*held.tolist()}) != other.tolist()
    beside = validation_images({"validation": 80}, 600, SEED, held)
    assert len(beside) == 30 and not {*beside.tolist()} & {*held.tolist()}


def test_holdouts_that_cannot_be():
    for count in (55, 600):
        with pytest.raises(ConfigError, match=r"balanced_holdout=.*10 classes, up to 590"):
            balanced_holdout({"balanced_holdout": count}, labels, SEED)
    for count in (5, 600):
        with pytest.raises(ConfigError, match=r"validation=.*600 training images"):
            validation_images({"validation": count}, 600, SEED, np.arange(10))
