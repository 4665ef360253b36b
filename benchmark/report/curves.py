"""Learning curves over rounds, bytes or seconds, from one run or several seeds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.runs.records import Row, read_rows

AXES = ("round", "bytes", "seconds")


@dataclass(frozen=True)
class Curve:
    """Rows of one or more seeds.

    Args:
        rows: means over the seeds for the rounds that all of them have; with one seed its rows.
        spread: rows with the standard deviations of the same columns (divisor n - 1); empty with one seed.
        seeds: number of seeds.
    """

    rows: list[Row]
    spread: list[Row]
    seeds: int


def read_curve(folders: Iterable[Path], columns: Sequence[str] = ()) -> Curve:
    """Read the curve of runs that differ only in the seed, with the cumulative cost of each round.

    Args:
        folders: folders of the runs.
        columns: columns needed besides the axes; default: all, but averaging columns by class is slow.

    Raises:
        RunError: a row is damaged.
    """
    seeds = [with_cost(read_rows(folder)) for folder in folders]
    if columns:
        kept = {"round", *AXES, *columns}
        seeds = [[{name: row[name] for name in row if name in kept} for row in rows] for rows in seeds]
    return averaged(seeds)


def with_cost(rows: Sequence[Row]) -> list[Row]:
    """Add ``bytes`` (up and down) and ``seconds`` since the first round to rows that have the necessary columns.

    A row has the seconds of its own round. If not every round is evaluated, the rounds before it count the same.
    """
    found, seconds, before = [], 0.0, -1
    for row in rows:
        more: Row = {}
        if "bytes_up" in row and "bytes_down" in row:
            more["bytes"] = row["bytes_up"] + row["bytes_down"]
        spent = row.get("timing", {}).get("seconds")
        if spent is not None:
            seconds += spent * (row["round"] - before)
            more["seconds"] = seconds
        before = row["round"]
        found.append({**row, **more})
    return found


def averaged(seeds: Sequence[Sequence[Row]]) -> Curve:
    """Compute means and standard deviations over seeds; a value missing in one of them is ``None``."""
    if len(seeds) == 1:
        return Curve(list(seeds[0]), [], 1)
    of_round = [{row["round"]: row for row in rows} for rows in seeds]
    rounds = [number for number in of_round[0] if all(number in rows for rows in of_round)]
    means, spreads = [], []
    for number in rounds:
        rows = [found[number] for found in of_round]
        shared = [key for key in rows[0] if key not in ("round", "timing") and all(key in row for row in rows)]
        means.append({"round": number} | {key: _reduced([row[key] for row in rows], np.mean) for key in shared})
        spreads.append({"round": number} | {key: _reduced([row[key] for row in rows], _deviation) for key in shared})
    return Curve(means, spreads, len(seeds))


def _reduced(values: Sequence[Any], reduce: Callable[[Sequence[float]], Any]) -> Any:
    """Reduce numbers to a number, lists of equal length to a list; ``None`` if something is missing."""
    if all(isinstance(value, list) for value in values):
        return [_reduced(entries, reduce) for entries in zip(*values, strict=True)]
    if not all(isinstance(value, int | float) for value in values):
        return None
    return float(reduce(values))


def _deviation(values: Sequence[float]) -> Any:
    return np.std(values, ddof=1)
