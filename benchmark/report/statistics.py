"""What the seeds of a setting support: intervals, paired differences, ranks, and what an accuracy costs.

Rows of a setting meet the same partition, clients and initial weights under a seed, so that they are compared within
seeds. All tests are two-sided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import scikit_posthocs
from scipy import stats
from statsmodels.stats.multitest import multipletests

from benchmark.report.curves import with_cost
from benchmark.runs.records import Record, Row

LEVEL = 0.95
FAILED = -inf
"""The score of a run that has failed: below all others."""
DIGITS = 6  # of a difference; what is behind them is rounding noise
SPENT = ("bytes_up", "bytes_down", "steps")


@dataclass(frozen=True)
class Ranking:
    """How rows rank over blocks (the seeds of all data sets), and which of them the blocks tell apart.

    Args:
        mean_ranks: by row; 1 is the best of every block.
        blocks: number of blocks.
        p: of Friedman's test that all rows rank alike.
        pairs: p-values of Nemenyi's test for every pair of rows.
        critical_difference: least difference of two mean ranks that is significant (Nemenyi; Demšar, JMLR 2006).
    """

    mean_ranks: pd.Series
    blocks: int
    p: float
    pairs: pd.DataFrame
    critical_difference: float


def interval(values: Sequence[float] | pd.Series) -> float | None:
    """Half-width of the 95 % t interval of the mean; ``None`` for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    return float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * stats.sem(values))


def compare(scores: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Every row's mean and its difference to the reference row, paired by seed.

    Args:
        scores: one line per seed, one column per row of the table; a missing run is NaN, a failed one ``FAILED``.
        reference: the column that the others are held against.

    Returns:
        By row, in the order of the columns: ``mean``, ``ci95`` (half-width), ``n`` (runs with a score), ``failed``
        (runs); over the ``pairs`` of scores that row and reference have ``difference``, ``difference_ci95``, ``p``
        (paired t-test), ``p_holm`` (Holm's correction over the rows); and ``above``: the share of seeds in which the
        row is above the reference (a tie counts half, and a failed run is below any other).
    """
    lines: dict[str, dict[str, Any]] = {}
    for name in scores:
        own, difference = _finite(scores[name]), (scores[name] - scores[reference]).round(DIGITS)
        paired = _finite(difference)
        line: dict[str, Any] = {"mean": own.mean(), "ci95": interval(own), "n": len(own), "pairs": len(paired)}
        line["failed"] = (scores[name] == FAILED).sum()
        if name != reference and len(difference.dropna()):
            line |= {"difference": paired.mean(), "difference_ci95": interval(paired), "above": above(difference)}
            if paired.nunique() > 1:
                line["p"] = stats.ttest_1samp(paired, 0.0).pvalue
        lines[str(name)] = line
    columns = ["mean", "ci95", "n", "failed", "pairs", "difference", "difference_ci95", "p", "p_holm", "above"]
    frame = pd.DataFrame.from_dict(lines, orient="index").reindex(columns=columns).astype("float64")
    tested = frame["p"].notna()
    if tested.any():
        frame.loc[tested, "p_holm"] = multipletests(frame.loc[tested, "p"], method="holm")[1]
    return frame


def _finite(values: pd.Series) -> pd.Series:
    return values[np.isfinite(values)]


def above(differences: pd.Series) -> float:
    """Share of positive differences among those that are known; a tie counts half."""
    known = differences.dropna()
    return float(((known > 0) + 0.5 * (known == 0)).mean())


def superiority(scores: pd.DataFrame) -> pd.DataFrame:
    """Probability that the row of a line beats the row of a column: the share of seeds in which it does."""
    names = list(scores)
    values = {b: {a: above(scores[a] - scores[b]) for a in names if a != b} for b in names}
    return pd.DataFrame(values).reindex(index=names, columns=names)


def rank(scores: pd.DataFrame) -> Ranking | None:
    """Mean ranks over the blocks (lines) that all rows (columns) have; ``None`` for fewer than three rows or blocks.

    A failed run ranks last in its block.
    """
    whole = scores.dropna()
    blocks, rows = whole.shape
    if rows < 3 or blocks < 3:
        return None
    alike = (whole.nunique(axis=1) == 1).all()  # then Friedman's statistic is 0 / 0
    range_ = stats.studentized_range.ppf(LEVEL, rows, float("inf"))
    pairs = scikit_posthocs.posthoc_nemenyi_friedman(whole.to_numpy())
    pairs.index = pairs.columns = whole.columns
    return Ranking(
        whole.rank(axis=1, ascending=False).mean().sort_values(),
        blocks,
        1.0 if alike else float(stats.friedmanchisquare(*(whole[name] for name in whole)).pvalue),
        pairs,
        float(range_ * (rows * (rows + 1) / (12 * blocks)) ** 0.5),
    )


def cost(record: Record, rows: Sequence[Row], accuracy: float) -> Mapping[str, float] | None:
    """What a run spends until an evaluated round first reaches ``accuracy`` (in percent); ``None`` if none does.

    Returns:
        ``rounds``, ``bytes_up``, ``bytes_down`` and, where the rows have them, ``steps`` up to and with that round, and
        ``seconds``: the run's seconds, split over its rounds as the rows' own seconds are.
    """
    timed = with_cost(rows)
    reached = next((row for row in timed if row["acc"] >= accuracy), None)
    if reached is None:
        return None
    spent = {name: float(reached[name]) for name in SPENT if name in reached}
    if "seconds" in reached:
        spent["seconds"] = record["timing"]["seconds"] * reached["seconds"] / timed[-1]["seconds"]
    return {"rounds": reached["round"] + 1, **spent}
