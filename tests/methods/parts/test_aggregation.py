"""Weighted means of client states: closed forms, order, precision, integer tensors, and what is refused."""

import math

import pytest
import torch

from datamodules.common.errors import ConfigError, RunError
from methods.parts.aggregation import weighted_mean
from methods.parts.labelled_clients import share_weights


def test_closed_form():
    a, b = {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([3.0, 0.0])}
    assert weighted_mean([a, b], [1, 3])["w"].tolist() == [2.5, 1.0]
    assert weighted_mean([a, b], torch.tensor([1.0, 3.0]))["w"].tolist() == [2.5, 1.0]
    assert weighted_mean([a, b], [0, 2])["w"].tolist() == [3.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_equal_states_come_back_bit_for_bit(count):
    g = torch.Generator().manual_seed(count)
    one = {"w": torch.randn(50, generator=g) * 10.0 ** torch.randint(-20, 20, (50,), generator=g)}
    assert torch.equal(weighted_mean([one] * count, [0.3] * count)["w"], one["w"])


def test_sums_are_accumulated_in_float64():
    """A thousand times 2^-20 beside 1 is lost in float32 sums, and kept here."""
    states = [{"w": torch.tensor([1.0])}] + [{"w": torch.tensor([2.0**-25])}] * 1024
    expected = (1.0 + 2.0**-15) / 1025
    assert float(weighted_mean(states, [1.0] * 1025)["w"]) == torch.tensor(expected, dtype=torch.float32).item()
    cancelling = [{"w": torch.tensor([v])} for v in (1e8, 1.0, -1e8)]
    assert float(weighted_mean(cancelling, [1.0] * 3)["w"]) == pytest.approx(1 / 3, rel=1e-6)


def test_kinds_of_tensors():
    """Floating tensors keep their dtype, shape and strides; counters are averaged as numbers."""
    layout = torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last)
    tensors = {"h": torch.ones(2, dtype=torch.bfloat16), "d": torch.ones((), dtype=torch.float64), "c": layout}
    mean = weighted_mean([tensors, tensors], [1, 2])
    assert {k: (v.dtype, v.shape, v.stride()) for k, v in mean.items()} == {
        k: (v.dtype, v.shape, v.stride()) for k, v in tensors.items()
    }
    counters = [{"n": torch.tensor(v)} for v in (3, 4)]
    assert weighted_mean(counters, [1, 1])["n"].dtype == torch.float32
    assert float(weighted_mean(counters, [1, 1])["n"]) == 3.5


def test_inputs_stay_as_they_were():
    values = {"w": torch.ones(2), "n": torch.tensor(3)}
    alone = weighted_mean([values], [5.0])
    alone["w"].zero_()
    weighted_mean([values, alone], [1, 2])
    assert values["w"].tolist() == [1.0, 1.0]
    assert values["n"].item() == 3


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.5], [0.0, 0.0], [1.0, math.nan], [1.0, math.inf], []])
def test_weights_that_cannot_be_used(weights):
    with pytest.raises(RunError, match="aggregation: "):
        weighted_mean([{"w": torch.ones(2)}] * 2, weights)


# --- weights of clients

SIZES, HELD = [10.0, 30.0, 20.0, 60.0], [True, True, False, False]


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("plain", [10, 30, 20, 60]),
        ("multiplier:6", [60, 180, 20, 60]),
        ("multiplier:0", [0, 0, 20, 60]),
        ("share:0.5", [0.125, 0.375, 0.125, 0.375]),
        ("share:0.2", [0.05, 0.15, 0.2, 0.6]),
        ("share:0", [0, 0, 0.25, 0.75]),
        ("share:1", [0.25, 0.75, 0, 0]),
    ],
)
def test_shares(mode: str, weights: list[float]):
    assert share_weights(SIZES, HELD, mode) == pytest.approx(weights)


@pytest.mark.parametrize("held", [[True] * 4, [False] * 4])
@pytest.mark.parametrize("mode", ["share:0.5", "share:0", "share:1", "plain"])
def test_one_kind_of_clients_weighs_by_size(held: list[bool], mode: str):
    """Nothing to share out; also where a share of 0 or 1 would leave no weight at all."""
    assert share_weights(SIZES, held, mode) == SIZES


@pytest.mark.parametrize(
    "mode",
    [
        *("", "equal", "Share:0.5", "plain:3"),
        *("share", "share:", "share:half", "share:1.1", "share:-0.1", "share:nan"),
        *("multiplier", "multiplier:-1", "multiplier:inf"),
    ],
)
def test_modes_that_cannot_be_read(mode: str):
    with pytest.raises(ConfigError, match=r"write share:<0\.\.1>, multiplier:<factor> or plain"):
        share_weights(SIZES, HELD, mode)
