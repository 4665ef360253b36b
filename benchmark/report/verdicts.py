"""What our seeds say of a printed lead: whether a method is above its control by what a paper prints.

A level depends on everything that a paper leaves out, so it is shown and decides nothing. The lead of a method over
its control, under the same seeds, is what a paper claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign, nan, sqrt
from statistics import fmean, stdev

import pandas as pd
from scipy.stats import t as student_t

from benchmark.report.statistics import LEVEL, interval

LEAST = 3
"""Seeds below which nothing is judged: with two, the 95 % interval is 12.7 standard errors wide to each side."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Lead:
    """Method minus control, ours beside the printed.

    Args:
        ours: mean of the differences within seeds, in points.
        half: half-width of its 95 % t interval; NaN for one seed.
        prediction: half-width of the 95 % interval around ours in which a printed lead, a mean of as many runs as the
            paper has, is expected (``prediction``); NaN for one seed.
        n: seeds that both have.
        printed: the printed difference.
        places: decimals of the printed values.
    """

    ours: float
    half: float
    prediction: float
    n: int
    printed: float
    places: int

    @property
    def verdict(self) -> tuple[str, str]:
        """The verdict, and why it is ``open``; RULES.md has the rule.

        ``holds``, ``smaller``, ``not seen``, ``reversed`` or ``open``; empty if the printed lead is 0, which claims
        nothing.
        """
        if not self.printed:
            return "", ""
        if self.n < LEAST:
            return "open", f"fewer than {LEAST} seeds"
        sign, printed = copysign(1.0, self.printed), abs(self.printed)
        ours = sign * self.ours
        if ours - self.half > ROUNDING:
            beyond = printed - round(ours, self.places) > self.prediction + ROUNDING
            return ("smaller" if beyond else "holds"), ""
        if ours + self.half < -ROUNDING:
            return "reversed", ""
        if ours + self.half < printed - ROUNDING:
            return "not seen", ""
        return "open", "the interval contains both 0 and the printed lead"


def lead(
    method: pd.Series, control: pd.Series, printed_method: str, printed_control: str, runs: int = 1
) -> Lead | None:
    """Method minus control over the seeds that both have; ``None`` where there are none.

    Args:
        method: our values by seed, in percent.
        control: the same of the control.
        printed_method: the printed value.
        printed_control: the control's.
        runs: runs behind a printed value.
    """
    differences = list((method - control).dropna())
    if not differences:
        return None
    digits = max(places(printed_method), places(printed_control))
    printed = round(float(printed_method) - float(printed_control), digits)
    halves = (interval(differences), prediction(differences, runs))
    half, expected = (nan if one is None else one for one in halves)
    return Lead(fmean(differences), half, expected, len(differences), printed, digits)


def prediction(values: Sequence[float], runs: int = 1, of: int = 1) -> float | None:
    """Half-width of the 95 % interval around the mean of ``values`` in which the mean of ``runs`` further runs lies.

    It is t(n - 1) s sqrt(1/n + 1/runs): our mean is uncertain, and so is theirs. As one ``of`` several intervals it is
    wider, so that all of them hold together with 95 % (Bonferroni). ``None`` for fewer than two values.
    """
    n = len(values)
    if n < 2:
        return None
    return float(student_t.ppf(1 - (1 - LEVEL) / (2 * of), n - 1)) * stdev(values) * sqrt(1 / n + 1 / runs)


def difference(ours: float, printed: str) -> float:
    """Ours minus the printed value, ours rounded as the printed one is."""
    digits = places(printed)
    return round(round(ours, digits) - float(printed), digits)


def places(printed: str) -> int:
    """Decimals of a printed value."""
    return len(printed.partition(".")[2])
