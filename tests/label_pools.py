"""Labels to spread over clients, and lists of positions."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

derandomised = settings(max_examples=60, deadline=None, derandomize=True)


def sorted_labels(counts):
    return np.repeat(np.arange(len(counts)), counts)


def lists(parts):
    return [part.tolist() for part in parts]


@st.composite
def pools(draw):
    labels = np.array(draw(st.lists(st.integers(0, 5), min_size=40, max_size=150)))
    return labels, draw(st.integers(1, 6)), draw(st.floats(0.05, 100)), draw(st.integers(0, 2**32 - 1))
