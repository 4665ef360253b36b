"""What a method keeps beside its registered tensors is compared by value."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmark.contract.attributes import alike, copied

MADE: dict[str, Callable[[int], Any]] = {
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "NumPy": np.random.default_rng,
    "NumPy, a state with an array": lambda seed: np.random.Generator(np.random.MT19937(seed)),
    "NumPy, legacy": np.random.RandomState,
    "Python": random.Random,
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_generators_are_alike_that_draw_alike(made: Callable[[int], Any]) -> None:
    one = made(0)
    assert alike(one, made(0)) and alike(one, copied(one)) and not alike(one, made(1))
