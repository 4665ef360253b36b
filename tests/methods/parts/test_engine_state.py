"""Sums of what a visit logs, and the columns they become."""

import torch

from methods.parts.engine_state import Tally, column_of


def test_no_two_names_share_a_column() -> None:
    """Neither among a method's values, nor with the framework's."""
    names = ["loss", "acc", "logged/acc", "logged/logged/acc", "server/x", "x", "pseudo/certain", "pseudo/right"]
    for automatic in (True, False):
        assert len({column_of(name, automatic) for name in names}) == len(names)
    assert column_of("loss", automatic=False) == "loss" and column_of("pseudo/certain", True) == "pseudo/certain"


def test_sums_of_short_numbers_are_wide() -> None:
    """Sums of bfloat16 numbers stop at 256, and other visits' types leave no trace."""
    tally = Tally()
    for _ in range(1000):
        tally.add("number", torch.ones((), dtype=torch.bfloat16), 1.0)
    mean = tally.mean("number")
    assert mean is not None and float(mean) == 1.0
    tally.clear()
    tally.add("number", torch.tensor(0.1, dtype=torch.float64), 3.0)
    assert tally.taken()["number"][0].dtype == torch.float64


def test_sums_of_another_shape_leave_those_of_a_recorded_step_alone() -> None:
    """A recorded step adds to the tensors that were there when it was recorded, whatever another visit has logged."""
    tally = Tally()
    tally.add("number", torch.tensor(2.0), 1.0)
    recorded = next(iter(tally.sums.values()))[0]
    tally.clear()
    tally.add("number", torch.ones(3), 1.0)
    tally.clear()
    tally.add("number", torch.tensor(0.0), 1.0)
    recorded += 5.0
    assert float(tally.taken()["number"][0]) == 5.0
