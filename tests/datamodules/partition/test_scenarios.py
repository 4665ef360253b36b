"""The three scenarios: published partitions, and laws that every one keeps."""

import numpy as np
import pytest

from datamodules.common.errors import ConfigError, DataError
from datamodules.digits import Digits
from datamodules.partition.draw import labelled_holdout, shares, stream_seed
from datamodules.partition.partition import unlabelled_sets
from federations import SCENARIOS, few_data
from label_pools import assert_sound, drawn, sorted_labels

SVHN = sorted_labels((4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659))
ISIC = sorted_labels((261, 425, 873, 88, 889, 5363, 113))
CIFAR100 = sorted_labels([500] * 100)
SVHN_LABELLED = [15, 292, 986, 116, 63, 1285, 1352, 1438, 807, 267]
SVHN_SIZES = [6621, 4594, 7578, 7972, 9178, 7781, 8852, 6374, 8311, 5996]
small_labels = np.arange(120) % 4
MIXED = np.random.RandomState(0).permutation(np.arange(600) % 10)
SEED = 3


def svhn_partition(num_clients, seed=1337, **options):
    return drawn(SVHN, num_clients, seed, beta=0.75, **options)


@pytest.fixture(scope="module")
def published():
    return svhn_partition(10)


def sizes(parts):
    return [len(part) for part in parts]


# --- published partitions


def test_published_svhn_partition(published):
    assert_sound(published, len(SVHN))
    counts = published.histogram(SVHN, 10)
    assert counts.sum(axis=1).tolist() == SVHN_SIZES
    assert published.histogram(SVHN, 10, "labelled").tolist() == [SVHN_LABELLED] + [[0] * 10] * 9
    assert (counts.sum(axis=0) == np.bincount(SVHN)).all()
    assert np.flatnonzero(counts[2]).tolist() == [0, 1, 2]
    assert published.hash == "6da3373b2b69ff8b024c64fce261c913be174290dc84e3f3bda07552f86b39cd"


def test_published_isic_and_cifar100_partitions():
    isic = drawn(ISIC, 10, 10087)
    assert isic.histogram(ISIC, 7).sum(axis=1).tolist() == [589, 2567, 583, 231, 348, 1204, 567, 939, 484, 500]
    assert isic.histogram(ISIC, 7)[0].tolist() == [16, 151, 11, 4, 5, 390, 12]
    cifar = drawn(CIFAR100, 10, 1337)
    counts = cifar.histogram(CIFAR100, 100)
    assert counts.sum(axis=1).tolist() == [5101, 5079, 5071, 4565, 5040, 5097, 4941, 5098, 5000, 5008]
    assert np.flatnonzero((counts > 0).all(axis=1)).tolist() == [0]


@pytest.mark.parametrize(
    ("num_clients", "labelled"), [(5, 16344), (10, 6621), (15, 5451), (25, 2907), (35, 2015), (50, 1461)]
)
def test_labelled_sizes_when_the_number_of_clients_varies(num_clients, labelled, published):
    assert len(svhn_partition(num_clients).labelled[0]) == labelled
    kept = svhn_partition(num_clients, labelled_from=10)
    assert_sound(kept, len(SVHN))
    assert kept.num_clients == num_clients
    assert kept.labelled[0].tolist() == published.labelled[0].tolist()
    assert kept.histogram(SVHN, 10).sum() == len(SVHN)
    assert (kept.hash == published.hash) == (num_clients == 10)


def test_two_labelled_clients_of_the_published_partition_and_the_upper_bound(published):
    two = svhn_partition(10, labelled_clients=2, picked=1)
    every = svhn_partition(10, labelled_clients=10)
    assert sizes(two.labelled) == [6621, 4594, *[0] * 8]
    assert (two.histogram(SVHN, 10, "labelled")[:2] > 0).all()
    for other in (two, every):
        assert (other.histogram(SVHN, 10) == published.histogram(SVHN, 10)).all()
    assert sizes(every.unlabelled) == [0] * 10 and len(every.pool) == 0
    assert len({published.hash, two.hash, every.hash}) == 3


def test_a_given_histogram_makes_client_0():
    partition = svhn_partition(10, 3, labelled_histogram=SVHN_LABELLED)
    assert_sound(partition, len(SVHN))
    assert partition.histogram(SVHN, 10)[0].tolist() == SVHN_LABELLED
    others = partition.histogram(SVHN, 10)[1:]
    assert others.sum() == len(SVHN) - 6621 and others.sum(axis=1).min() >= 10
    # the cap is that of nine clients sharing the rest: nobody can pass it by more than one class
    assert others.sum(axis=1).max() < (len(SVHN) - 6621) / 9 + others.max()
    ordered = drawn(np.array([0, 0, 1, 1, 1, 0]), 2, 0, partition="iid", labelled_histogram=[2, 1])
    assert sizes(ordered.labelled) == [3, 0] and sizes(ordered.unlabelled) == [0, 3]


HISTOGRAM = "labelled_histogram=.*: give a number of images for each class, up to"
EVERYBODY = {"scenario": "all_clients"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labelled_histogram": [1, 1, 1]}, DataError, HISTOGRAM),
        ({"labelled_histogram": [0] * 4}, DataError, HISTOGRAM),
        ({"labelled_histogram": [30, 30, 30, 29]}, DataError, HISTOGRAM),
        ({"labelled_histogram": [9] * 4, "labelled_from": 2}, ConfigError, "only picked"),
        ({"scenario": "server", "num_labels": 10}, DataError, "not a multiple of 4 classes: choose 8 or 12"),
        ({"scenario": "server", "num_labels": 124}, DataError, "31 samples of class 0"),
        (EVERYBODY, ConfigError, "num_labels=None, label_fraction=None, labels_per_class=None"),
        ({**EVERYBODY, "label_fraction": 0.1, "labelled_partition": "iid"}, ConfigError, "labelled_partition=iid"),
    ],
)
def test_impossible_scenarios(options, error, message):
    with pytest.raises(error, match=message):
        drawn(small_labels, 3, 0, partition="iid", **options)


# --- images that are held back


def options(scenario):
    return {"scenario": scenario, "partition": "iid", **SCENARIOS[scenario]}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_partition_of_the_rest_is_that_of_a_data_set_without_the_held_images(scenario):
    made = shares({**Digits().hparams, **options(scenario), "validation": 4}, MIXED, SEED)
    rest = np.delete(np.arange(600), made.validation)
    alone = drawn(MIXED[rest], seed=SEED, **options(scenario))
    assert_sound(made.partition, 600)
    assert made.partition.hash == alone.moved(rest).hash and len(rest) == 596


def test_a_holdout_leaves_stand_ins_where_they_are():
    """A tuning run meets the unlabelled images of the run that it tunes."""
    made = drawn(MIXED, seed=SEED, **options("all_clients"))
    rest = made.without_labelled(labelled_holdout(made, 0.25, SEED))
    assert_sound(rest, 600)
    joint = (unlabelled_sets(partition, "code_index") for partition in (made, rest))
    for before, after, whole, less in zip(made.labelled, rest.labelled, *joint, strict=True):
        stand_in = dict(zip(before, whole, strict=False))
        assert [stand_in[position] for position in after] == less[: len(after)].tolist()


def test_a_named_stream_has_partitions_of_its_own():
    """No name is the seed itself; a seed of NumPy's generator comes out, and a data set is drawn with it."""
    assert stream_seed(7, None) == 7
    seeds = [stream_seed(seed, name) for seed in (0, 1) for name in ("text/clients", "text/all", "")]
    assert len({0, 1, *seeds}) == 8 and all(0 <= seed < 2**32 for seed in seeds)
    assert stream_seed(0, "text/clients") == 83450096  # frozen: records rest on it
    named = few_data(3, partition_seed=0, partition_stream="text/clients")
    assert named.partition.hash == few_data(3, partition_seed=83450096).partition.hash
