"""What seeds support: intervals, paired differences, printed leads, what still rises, and what an accuracy costs.

Rows of a setting meet the same partition, clients and initial weights under a seed, so that they are compared within
seeds. All tests are two-sided.
"""

from collections.abc import Collection, Mapping, Sequence
from math import copysign, inf, nan, sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from benchmark.runs.records import Record

LEVEL = 0.95
FAILED = -inf
"""The score of a run that has failed: below all others."""
DIGITS = 6  # of a difference; what is behind them is rounding noise
SPENT = ("bytes_up", "bytes_down", "steps")
MOST_FLIPPED = 20  # pairs; they have 2 ** 20 patterns of signs
LEAST = 3
"""Seeds below which nothing is judged: with two, the 95 % interval is 12.7 standard errors wide to each side."""
ROUNDING = 1e-9


def interval(values: Sequence[float] | pd.Series, level: float = LEVEL) -> float | None:
    """Half-width of the t interval of the mean, of 95 % by default; ``None`` for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    return float(stats.t.ppf((1 + level) / 2, n - 1) * stats.sem(values))


def summary(scores: pd.Series) -> dict[str, Any]:
    """A row's ``mean`` over runs with a score, its ``ci95`` (half-width), ``n`` of these runs, and ``failed`` ones."""
    known = finite(scores)
    return {"mean": known.mean(), "ci95": interval(known), "n": len(known), "failed": (scores == FAILED).sum()}


def compare(scores: pd.DataFrame, reference: str, bounds: Collection[str] = ()) -> pd.DataFrame:
    """Every row's mean and its difference to the reference row, paired by seed.

    All rows but the reference and the bounds are one family, whether they have been run or not, so that a setting that
    is half run promises no more than a whole one. Bounds know more than a method may: nothing is claimed of them, and
    they are not tested.

    The simultaneous intervals are Bonferroni's: t intervals of level 1 - 0.05 / m in a family of m rows. They jointly
    hold with 95 % confidence however the differences depend on each other (all share the reference), and whatever
    variance and number of pairs each has. Dunnett's and Tukey's methods need one common variance, and Šidák's, narrower
    by less than one percent, needs an inequality that is not proven for variances estimated row by row. An interval
    that leaves out zero has p_holm < 0.05; Holm's steps can reject a little more.

    Args:
        scores: one line per seed, one column per row of the table; a missing run is NaN, a failed one ``FAILED``.
        reference: the column that the others are held against.
        bounds: columns outside the family: a setting's bounds and controls.

    Returns:
        By row, in the order of the columns: its ``summary``; over the ``pairs`` of scores that row and reference have
        ``difference``, ``difference_ci95``; for the
        family ``simultaneous_ci95`` (half-width), ``p`` (paired t-test), ``p_holm`` (Holm's correction of it) and
        ``p_flip`` (``sign_flip``), which are empty where all pairs differ by the same; and ``above``: the share of
        seeds in which the row is above the reference (a tie counts half, and a failed run is below any other).
    """
    family = [name for name in scores if name != reference and name not in bounds]
    lines: dict[str, dict[str, Any]] = {}
    for name in scores:
        difference = (scores[name] - scores[reference]).round(DIGITS)
        known, paired = difference.dropna(), finite(difference)
        line = summary(scores[name]) | {"pairs": len(paired)}
        if name != reference and len(known):
            above = ((known > 0) + 0.5 * (known == 0)).mean()
            line |= {"difference": paired.mean(), "difference_ci95": interval(paired), "above": above}
            if name in family and paired.nunique() > 1:
                line["simultaneous_ci95"] = interval(paired, 1 - (1 - LEVEL) / len(family))
                line["p"] = stats.ttest_1samp(paired, 0.0).pvalue
                line["p_flip"] = sign_flip(paired)
        lines[str(name)] = line
    columns = ["mean", "ci95", "n", "failed", "pairs", "difference", "difference_ci95", "simultaneous_ci95"]
    columns += ["p", "p_holm", "p_flip", "above"]
    frame = pd.DataFrame.from_dict(lines, orient="index").reindex(columns=columns).astype("float64")
    if family:
        corrected = multipletests(frame.loc[family, "p"].fillna(1.0), method="holm")[1]
        frame.loc[family, "p_holm"] = np.where(frame.loc[family, "p"].notna(), corrected, nan)
    return frame


def sign_flip(differences: Sequence[float] | pd.Series) -> float | None:
    """Exact two-sided p-value of the paired sign-flip test of the mean (Fisher's randomisation test).

    If neither row is better, each of the ``2 ** n`` patterns of signs of the differences is as likely as the one that
    was seen. The p-value is the share of patterns whose sum is as far from zero as the sum that was seen; it cannot be
    below ``2 ** (1 - n)``. ``None`` for no differences, and for more than 20.
    """
    sizes = np.abs(np.asarray(differences, dtype="float64"))
    if not 0 < len(sizes) <= MOST_FLIPPED:
        return None
    sums = sizes[:1]  # its sign may stay: patterns that mirror each other have sums of the same size
    for size in sizes[1:]:
        sums = np.concatenate([sums + size, sums - size])
    seen = abs(np.sum(np.asarray(differences, dtype="float64")))
    return float((np.abs(sums) >= seen - 10.0**-DIGITS / 2).mean())


def late_rise(rounds: pd.DataFrame) -> float:
    """How much a run's accuracy rises over the last quarter of its rounds, in points; NaN if fewer than two tell.

    The slope is that of Theil and Sen, the median of the slopes between all pairs of evaluated rounds from 75 % of the
    rounds on, so that a single round that swings or collapses moves it little. The rise is that of a line with
    this slope over a quarter of the rounds.

    Args:
        rounds: the evaluated rounds, ascending, with ``round`` and ``acc``; the last one ends the run.
    """
    if rounds.empty:
        return nan
    done = rounds["round"] + 1
    late = done >= 0.75 * done.iloc[-1]
    if late.sum() < 2:
        return nan
    slope = stats.theilslopes(rounds["acc"][late].astype("float64"), done[late]).slope
    return float(slope * done.iloc[-1] / 4)


def finite(values: pd.Series) -> pd.Series:
    """Those that are known and of no failed run."""
    return values[np.isfinite(values)]


def cost(record: Record, rounds: pd.DataFrame, accuracy: float) -> Mapping[str, float] | None:
    """What a run spends until an evaluated round first reaches ``accuracy`` (in percent); ``None`` if none does.

    Args:
        record: its record.
        rounds: its evaluated rounds (``frame.rounds_of``).
        accuracy: the goal.

    Returns:
        ``rounds``, ``bytes_up``, ``bytes_down`` and, where the rows have them, ``steps`` up to and with that round, and
        ``seconds``: the run's seconds, split over its rounds as the rows' own seconds are.
    """
    reached = rounds[rounds["acc"] >= accuracy]
    if reached.empty:
        return None
    first = reached.iloc[0].dropna()
    spent = {"rounds": first["round"] + 1, **{name: float(first[name]) for name in SPENT if name in first}}
    if "seconds" in first:
        spent["seconds"] = record["timing"]["seconds"] * first["seconds"] / rounds["seconds"].iloc[-1]
    return spent


def prediction(values: Sequence[float] | pd.Series, runs: int = 1, of: int = 1) -> float | None:
    """Half-width of the 95 % interval around the mean of ``values`` in which the mean of ``runs`` further runs lies.

    It is t(n - 1) s sqrt(1/n + 1/runs): our mean is uncertain, and so is theirs. As one ``of`` several intervals it is
    wider, so that all of them jointly hold with 95 % confidence (Bonferroni). ``None`` for fewer than two values.
    """
    n = len(values)
    if n < 2:
        return None
    return float(stats.t.ppf(1 - (1 - LEVEL) / (2 * of), n - 1) * stdev(values) * sqrt(1 / n + 1 / runs))


def paired(scores: pd.Series, others: pd.Series) -> tuple[float, float | None, int]:
    """Mean difference of two rows, half-width of its interval, and the number of seeds in which both have a score."""
    differences = finite(scores - others)
    return differences.mean(), interval(differences), len(differences)


def lead(
    method: pd.Series, control: pd.Series, printed_method: str, printed_control: str, runs: int = 1
) -> dict[str, Any] | None:
    """What our seeds say of a printed lead: whether a method is above its control by what a paper prints.

    A level depends on everything that a paper leaves out. The lead of a method over its control, under the same seeds,
    is what a paper claims.

    Args:
        method: our values by seed, in percent.
        control: the same of the control.
        printed_method: the printed value.
        printed_control: the control's.
        runs: runs behind a printed value.

    Returns:
        ``effect`` (mean of the differences within seeds, in points), ``effect_ci95`` (half-width of its t interval) and
        ``effect_prediction`` (that of the interval in which a printed lead is expected), both ``None`` for one seed,
        ``effect_n`` (seeds that both have), ``effect_published`` and its ``effect_places`` (decimals), ``verdict`` and,
        where that is ``open``, ``note``. ``None`` without a seed that both have. RULES.md has the rule: ``holds``,
        ``smaller``, ``not seen``, ``reversed`` or ``open``; empty if the printed lead is 0, which claims nothing.
    """
    differences = list((method - control).dropna())
    if not differences:
        return None
    digits = max(places(printed_method), places(printed_control))
    printed = round(float(printed_method) - float(printed_control), digits)
    ours, half, expected = fmean(differences), interval(differences), prediction(differences, runs)
    found = {"effect": ours, "effect_ci95": half, "effect_prediction": expected, "effect_n": len(differences)}
    verdict, note = "open", ""
    ours, claimed = copysign(1.0, printed) * ours, abs(printed)  # as if a gain were printed
    if not claimed:
        verdict = ""
    elif half is None or expected is None or len(differences) < LEAST:
        note = f"fewer than {LEAST} seeds"
    elif ours - half > ROUNDING:
        verdict = "smaller" if claimed - round(ours, digits) > expected + ROUNDING else "holds"
    elif ours + half < -ROUNDING:
        verdict = "reversed"
    elif ours + half < claimed - ROUNDING:
        verdict = "not seen"
    else:
        note = "the interval contains both 0 and the printed lead"
    return {**found, "effect_published": printed, "effect_places": digits, "verdict": verdict, "note": note}


def difference(ours: float, printed: str) -> float:
    """Ours minus the printed value, ours rounded as the printed one is."""
    digits = places(printed)
    return round(round(ours, digits) - float(printed), digits)


def places(printed: str) -> int:
    """Decimals of a printed value."""
    return len(printed.partition(".")[2])
