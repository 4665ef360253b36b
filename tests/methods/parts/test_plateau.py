"""The plateau rule on a short history, by hand."""

import pytest
import torch

from methods.parts.plateau import Plateau


def test_the_rate_falls_after_patience_losses_without_improvement() -> None:
    """Equal losses do not improve; an improvement or a fall starts the count anew."""
    rule = Plateau(patience=2, divide_by=3.0)
    factors = []
    for loss in (5.0, 4.0, 4.0, 3.0, 3.5, 3.0, 3.0, 3.0, 1.0):
        rule.note(torch.tensor(loss))
        factors.append(rule.factor())
    assert factors == pytest.approx([1, 1, 1, 1, 1, 1 / 3, 1 / 3, 1 / 9, 1 / 9])
    assert float(rule.lowest) == 1.0


def test_its_state_is_registered() -> None:
    """Another rule goes on from it."""
    rule, other = Plateau(2, 3.0), Plateau(2, 3.0)
    for loss in (1.0, 2.0):
        rule.note(torch.tensor(loss))
    other.load_state_dict(rule.state_dict())
    for one in (rule, other):
        one.note(torch.tensor(float("nan")))
        assert one.factor() == pytest.approx(1 / 3)
    assert all(bool(torch.isfinite(v).all()) for v in rule.state_dict().values())
