"""Labels to spread over clients, partitions of them, and lists of positions."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.random import RandomState

from datamodules.digits import Digits
from datamodules.partition.scenarios import Draw

derandomised = settings(max_examples=60, deadline=None, derandomize=True)


def sorted_labels(counts):
    return np.repeat(np.arange(len(counts)), counts)


def lists(parts):
    return [part.tolist() for part in parts]


def drawn(labels, num_clients, seed, **options):
    """One partition by these options of a data module, among the defaults."""
    return Draw({**Digits().hparams, "num_clients": num_clients, **options}, labels, RandomState(seed)).partition()


@st.composite
def pools(draw):
    labels = np.array(draw(st.lists(st.integers(0, 5), min_size=40, max_size=150)))
    return labels, draw(st.integers(1, 6)), draw(st.floats(0.05, 100)), draw(st.integers(0, 2**32 - 1))
