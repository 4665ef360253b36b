"""Ramps over rounds."""

from math import exp


def exponential_ramp(step: float, length: float) -> float:
    """``exp(-5 (1 - min(step, length) / length)^2)``, the usual consistency ramp-up; 1 for a ramp of length 0."""
    if length <= 0:
        return 1.0
    return exp(-5.0 * (1.0 - min(max(step, 0.0), length) / length) ** 2)
