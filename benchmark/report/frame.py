"""The runs of a suite as one long frame, of which tables and boards are made; and the rounds of a run."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from benchmark.runs.records import READING, read_rows
from benchmark.suites.plan import Plan

LACKS = ("failed", "damaged", "outdated", "running", "stale", "missing")  # the first that applies to a seed's runs
BROKEN = LACKS[:3]  # rows with such a seed get no verdict
NONE = pd.Series(dtype="float64")
Values = Mapping[tuple[str, str, str], pd.Series]
"""Values by seed, of a row (``Row.full_name``), a reading (as a suite's ``report`` names it) and a metric."""


def long_frame(plan: Plan) -> pd.DataFrame:
    """The runs of a suite at a scale, in the order of its rows and seeds.

    Returns:
        Columns ``row`` (``Row.full_name``), ``seed``, ``run``, ``state``, ``reading``, ``metric`` and ``value``. A run
        without a value, such as one that is missing, has one line; a run that stands in several rows has lines in each.
    """
    lines = []
    for row, of_seed in plan.of_row.items():
        for seed, run in of_seed.items():
            state, record = plan.found[run]
            about = {"row": row, "seed": seed, "run": run, "state": state}
            read = [
                {**about, "reading": reading, "metric": metric, "value": value}
                for reading, name in READING.items()
                for metric, value in ((record or {}).get(name) or {}).items()
                if isinstance(value, float)
            ]
            lines += read or [about]
    return pd.DataFrame(lines, columns=["row", "seed", "run", "state", "reading", "metric", "value"])


def by_row(plan: Plan) -> Values:
    """The values of the long frame, as tables and boards look them up."""
    groups = long_frame(plan).dropna(subset="value").set_index("seed").groupby(["row", "reading", "metric"], sort=False)
    return {(str(row), str(reading), str(metric)): of["value"] for (row, reading, metric), of in groups}


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
