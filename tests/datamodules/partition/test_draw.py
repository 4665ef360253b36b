"""Options become partitions: those of each scenario, with images held back from all or from one role."""

import numpy as np
import pytest

from datamodules.common.errors import ConfigError, DataError
from datamodules.partition import draw as draw_module
from datamodules.partition.draw import (
    balanced_holdout,
    draw,
    labelled_holdout,
    shares,
    stream_seed,
    validation_images,
)
from datamodules.partition.partition import Partition, unlabelled_sets
from datamodules.partition.scenarios import Draw
from datamodules.partition.split import labelled_pool, pairs
from federations import SCENARIOS, make_data

SEED = 3
labels = np.random.RandomState(0).permutation(np.arange(600) % 10)


def options(scenario, **changes):
    """The options of a data module of that scenario."""
    return dict(make_data(scenario).hparams) | changes


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_partition_of_the_rest_is_that_of_a_data_set_without_the_held_images(scenario):
    made = shares(options(scenario, validation=4), labels, SEED)
    rest = np.delete(np.arange(600), made.validation)
    alone = draw(options(scenario), labels[rest], SEED)
    made.partition.validate(600)
    assert made.partition.hash == alone.moved(rest).hash and len(rest) == 596


def test_a_holdout_leaves_stand_ins_where_they_are():
    """A tuning run meets the unlabelled images of the run that it tunes."""
    made = draw(options("all_clients"), labels, SEED)
    rest = made.without_labelled(labelled_holdout(made, 0.25, SEED))
    rest.validate(600)
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


SKEWED = {"partition": "dirichlet", "beta": 0.5, "min_size": 5, "num_clients": 8, "labelled_clients": 3}


def least_of_a_class(partition, clients):
    return np.bincount(labels[np.concatenate(list(partition.labelled)[:clients])], minlength=10).min()


def test_a_draw_is_repeated_from_its_stream_until_the_labelled_clients_hold_enough():
    """The first of the partitions that one generator gives which does; how many did not is counted."""
    given = options("partial_clients", labelled_pick="index0", **SKEWED)
    made = draw(given | {"labelled_min_per_class": 12}, labels, SEED)
    rng = np.random.RandomState(SEED)
    drawn = [Draw(given, labels, rng).partition() for _ in range(made.redraws + 1)]
    assert made.redraws > 0 and made.hash == drawn[-1].hash
    assert [least_of_a_class(one, 3) >= 12 for one in drawn] == [False] * made.redraws + [True]
    plain = draw(given, labels, SEED)
    assert plain.redraws == 0 and plain.hash == drawn[0].hash
    met = draw(given | {"labelled_min_per_class": int(least_of_a_class(plain, 3)) or None}, labels, SEED)
    assert (met.redraws, met.hash) == (0, plain.hash)


def test_a_bound_that_labels_everybody_meets_the_same_clients():
    given = options("partial_clients", labelled_min_per_class=12, **SKEWED, picked=3, labelled_pick="index0")
    method, bound = (draw(given | {"labelled_clients": n}, labels, SEED) for n in (3, 8))
    assert method.redraws == bound.redraws > 0
    ours = [*list(method.labelled)[:3], *list(method.unlabelled)[3:]]
    assert all(np.array_equal(part, other) for part, other in zip(ours, bound.labelled, strict=True))


def test_the_count_of_draws_goes_along(tmp_path):
    made = draw(options("partial_clients", labelled_pick="index0", labelled_min_per_class=12, **SKEWED), labels, SEED)
    assert made.moved(np.arange(600)).redraws == made.without_labelled([]).redraws == made.redraws
    made.save(tmp_path / "partition.json", labels)
    assert Partition.load(tmp_path / "partition.json", labels).redraws == made.redraws
    saved = options("partial_clients", **SKEWED, partition_file=str(tmp_path / "partition.json"))
    assert shares(saved | {"labelled_min_per_class": 12}, labels, SEED).partition.redraws == made.redraws
    with pytest.raises(DataError, match=r"labelled_min_per_class=55: .* the only one"):
        shares(saved | {"labelled_min_per_class": 55}, labels, SEED)


@pytest.mark.parametrize(
    ("least", "says"),
    [
        (61, r"the labelled clients must together hold that many .*the rarest class has only 60: label more"),
        (60, "they did in none of 20 partitions: label more clients .*a larger data.beta, or a smaller"),
    ],
)
def test_labelled_clients_that_never_hold_enough_are_one_clear_error(least, says, monkeypatch):
    monkeypatch.setattr(draw_module, "MAX_DRAWS", 20)
    given = options("partial_clients", labelled_min_per_class=least, **SKEWED)
    with pytest.raises(DataError, match=rf"(?s)data\.labelled_min_per_class={least}: .*{says}"):
        draw(given, labels, SEED)


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
