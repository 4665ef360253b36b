"""What our seeds say of a printed value: whether it is one that our runs give, and whether its method's effect shows.

Two questions are kept apart. The *level* compares one number with another, and depends on everything that a paper
leaves out. The *effect* is what a paper claims: a method above its control, under the same seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t as student_t

from benchmark.report.statistics import LEVEL, interval

LEAST = 3
"""Seeds below which nothing is judged: with two, the 95 % interval is 12.7 standard errors wide to each side."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Level:
    """Whether a printed value is one that our runs give.

    Args:
        half: half-width of the 95 % prediction interval around our mean, in points; see ``prediction``.
        holds: whether the printed value lies inside.
    """

    half: float
    holds: bool


@dataclass(frozen=True)
class Effect:
    """Method minus control, ours beside the printed.

    Args:
        ours: mean of the differences within seeds, in points.
        half: half-width of its 95 % t interval.
        n: seeds that both have.
        printed: the printed difference.
        places: decimals of the printed values.
    """

    ours: float
    half: float
    n: int
    printed: float
    places: int

    @property
    def holds(self) -> bool:
        """Whether the interval leaves out zero and ours has the printed sign."""
        return abs(self.ours) > self.half + ROUNDING and self.ours * self.printed > 0

    def resolved_by(self, half: float) -> bool:
        """Whether an interval of this half-width is, end to end, at most half as wide as the printed difference."""
        return 2 * half <= abs(self.printed) / 2 + ROUNDING


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


def level(values: Sequence[float], printed: str, runs: int = 1) -> Level | None:
    """The printed value, a mean of ``runs`` runs, against ours; ``None`` for fewer than two values."""
    half = prediction(values, runs)
    if half is None:
        return None
    return Level(half, abs(difference(fmean(values), printed)) <= half + ROUNDING)


def effect(
    method: Mapping[int, float], control: Mapping[int, float], printed_method: str, printed_control: str
) -> Effect | None:
    """Method minus control over the seeds that both have; ``None`` where these are fewer than two.

    Args:
        method: our values by seed, in percent.
        control: the same of the control.
        printed_method: the printed value.
        printed_control: the control's.
    """
    differences = [method[seed] - control[seed] for seed in method if seed in control]
    half = interval(differences)
    if half is None:
        return None
    digits = max(places(printed_method), places(printed_control))
    claimed = round(float(printed_method) - float(printed_control), digits)
    return Effect(fmean(differences), half, len(differences), claimed, digits)


def judge(seeds: int, of_level: Level | None, of_effect: Effect | None, has_control: bool) -> tuple[str, str]:
    """The verdict on a cell, and why there is none.

    Args:
        seeds: seeds that have a value.
        of_level: of the cell.
        of_effect: of the cell; ``None`` where too few seeds are common to both, or where there is no control.
        has_control: whether the cell has a control with a printed value, so that an effect is printed.

    Returns:
        ``reproduced`` where level and effect hold, ``level only`` or ``effect only`` where one does, ``not reproduced``
        where neither does. The verdict is empty where the seeds cannot tell: one of the two intervals is wider, from
        end to end, than half the printed effect, no effect is printed to measure them by, or there are too few seeds.
        The reason comes second.
    """
    if seeds < LEAST or of_level is None:
        return "", f"fewer than {LEAST} seeds"
    if not has_control:
        return "", "no effect is printed"
    if of_effect is None or of_effect.n < LEAST:
        return "", f"fewer than {LEAST} seeds in common with the control"
    if not of_effect.resolved_by(of_effect.half):
        return "", "the effect's interval is too wide"
    if not of_effect.resolved_by(of_level.half):
        return "", "the level's interval is too wide"
    if of_level.holds and of_effect.holds:
        return "reproduced", ""
    if of_level.holds:
        return "level only", ""
    return ("effect only" if of_effect.holds else "not reproduced"), ""
