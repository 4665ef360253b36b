"""Labels to spread over clients, partitions of them, and lists of positions."""

import numpy as np
from numpy.random import RandomState

from datamodules.digits import Digits
from datamodules.partition.draw import Draw


def sorted_labels(counts):
    return np.repeat(np.arange(len(counts)), counts)


def assert_sound(partition, num_samples):
    """A sample has one owner and one role; pools have those of the clients, and each sample once."""
    labelled, unlabelled = partition.labelled.flat, partition.unlabelled.flat
    drawn = labelled if partition.labelled_pool is None else partition.labelled_pool
    for part in (np.concatenate([labelled, unlabelled, partition.server]), partition.pool, drawn):
        assert len(np.unique(part)) == len(part) and np.isin(part, np.arange(num_samples)).all()
    assert not np.isin(partition.pool, np.concatenate([labelled, partition.server, drawn])).any()
    assert np.isin(unlabelled, partition.pool).all() and np.isin(labelled, drawn).all()


def lists(parts):
    return [part.tolist() for part in parts]


def drawn(labels, num_clients, seed, **options):
    """One partition by these options of a data module, among the defaults."""
    return Draw({**Digits().hparams, "num_clients": num_clients, **options}, labels, RandomState(seed)).partition()
