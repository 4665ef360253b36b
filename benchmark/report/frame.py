"""The values of a suite's runs, of which tables and boards are made; and the rounds of runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.config import Runtime
from benchmark.runs.records import READING, read_rows
from benchmark.runs.states import Digests, state_of
from benchmark.suites.plan import Plan, Row
from benchmark.suites.suite import Suite

LACKS = ("failed", "damaged", "outdated", "running", "stale", "missing")  # in the order in which they are told
BROKEN = LACKS[:3]  # rows with such a seed get no verdict
NONE = pd.Series(dtype="float64")
Values = Mapping[tuple[str, str, str], pd.Series]
"""Values by seed, of a row (``Row.full_name``), a reading (as a suite's ``report`` names it) and a metric."""


def by_row(plan: Plan) -> Values:
    """The values of a suite's runs at a scale, as tables and boards look them up; runs without one are left out."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row, of_seed in plan.of_row.items():
        for seed, run in of_seed.items():
            record: Mapping[str, Any] = plan.found[run].record or {}
            for reading, name in READING.items():
                for metric, value in (record.get(name) or {}).items():
                    if isinstance(value, float):
                        found.setdefault((row, reading, metric), {})[seed] = value
    return {key: pd.Series(own, dtype="float64") for key, own in found.items()}


def values_of(known: Values, row: Row, reading: str, metric: str) -> pd.Series:
    """A metric in a reading of a row's complete runs, by seed; a run whose record lacks it is left out."""
    return known.get((row.full_name, reading, metric), NONE)


def rounds_of(folder: Path) -> pd.DataFrame:
    """The evaluated rounds of a run, nested keys joined by dots.

    Added are ``bytes`` (up and down) and ``seconds`` since the first round, where the rows tell. A row has the seconds
    of its own round; if not every round is evaluated, the rounds before it count the same.

    Raises:
        RunError: a row is damaged.
    """
    rows = [dict(row) for row in read_rows(folder)]
    frame = pd.json_normalize(rows) if rows else pd.DataFrame(columns=["round", "acc"])
    if {"bytes_up", "bytes_down"} <= {*frame}:
        frame["bytes"] = frame["bytes_up"] + frame["bytes_down"]
    if "timing.seconds" in frame:
        rounds = frame["round"].diff().fillna(frame["round"] + 1)
        frame["seconds"] = (frame["timing.seconds"] * rounds).cumsum()
    return frame


def rounds(suite: Suite, rows: Iterable[Row], scale: str, results_dir: str | Path) -> pd.DataFrame:
    """The evaluated rounds of all complete runs of a suite's rows: one line per row, seed and round.

    ``table``, ``dataset``, ``row`` (the method's label, and the columns that distinguish rows of one label) and
    ``seed`` stand before the columns of ``rounds_of``.

    Raises:
        RunError: a row of a run is damaged.
    """
    known: Digests = {}
    parts = []
    for row in rows:
        name = row.full_name.removeprefix(f"{row.table}/{row.dataset}/")
        for seed, run in suite.runs(row, scale, runtime=Runtime(results_dir=str(results_dir))).items():
            if state_of(run, known).state == "complete":
                found = rounds_of(run.folder)
                where = {"table": row.table, "dataset": row.dataset, "row": name, "seed": seed}
                parts.append(pd.concat([pd.DataFrame(where, found.index), found], axis=1))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["table", "dataset", "row", "seed"])
