"""Ramps."""

from math import exp

from methods.parts.schedules import exponential_ramp


def test_ramp() -> None:
    """FedIRM's λ: 0.0067 at round 0, 0.6376 at 21, 1 from 30."""
    assert round(exponential_ramp(0, 30), 4) == 0.0067
    assert round(exponential_ramp(21, 30), 4) == 0.6376
    assert exponential_ramp(-3, 30) == exponential_ramp(0, 30) == exp(-5)
    assert exponential_ramp(0, 0) == 1
    assert exponential_ramp(30, 30) == exponential_ramp(99, 30) == 1
    ramp = [exponential_ramp(r, 30) for r in range(31)]
    assert ramp == sorted(ramp) and len(set(ramp)) == 31
