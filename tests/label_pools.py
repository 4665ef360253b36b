"""Labels to spread over clients, partitions of them, and lists of positions."""

import numpy as np
from numpy.random import RandomState

from datamodules.digits import Digits
from datamodules.partition.scenarios import Draw


def sorted_labels(counts):
    return np.repeat(np.arange(len(counts)), counts)


def lists(parts):
    return [part.tolist() for part in parts]


def drawn(labels, num_clients, seed, **options):
    """One partition by these options of a data module, among the defaults."""
    return Draw({**Digits().hparams, "num_clients": num_clients, **options}, labels, RandomState(seed)).partition()
