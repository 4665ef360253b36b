"""The runs of a suite as one long frame: a line for each run, reading and metric. Tables and boards are made of it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.runs.records import READING, Record, read_rows
from benchmark.suites.plan import Plan, Row
from benchmark.suites.suite import Suite

NONE = pd.Series(dtype="float64")
Values = Mapping[tuple[str, str, str], pd.Series]
"""Values by seed, of a row (``Row.full_name``), a reading (as a suite's ``report`` names it) and a metric."""


def long_frame(suite: Suite, plan: Plan) -> pd.DataFrame:
    """The runs of a suite at a scale, in the order of its rows and seeds.

    Returns:
        Columns ``table``, ``dataset``, ``method`` (label), ``columns``, ``row`` (``Row.full_name``), ``seed``, ``run``,
        ``status``, ``reading``, ``metric`` and ``value``. A run without a value, such as one that is missing, has one
        line; a run that stands in several rows has lines in each.
    """
    about = [
        {**place_columns(row), "row": row.full_name, "seed": seed, "run": key, "status": plan.found[key].state}
        for row in suite.rows
        for seed, key in plan.of_row.get(row.full_name, {}).items()
    ]
    records = {key: found.record for key, found in plan.found.items() if found.record is not None}
    return _with_values(pd.DataFrame(about, columns=[*place_columns(None), "row", "seed", "run", "status"]), records)


def by_row(frame: pd.DataFrame) -> Values:
    """The values of a long frame, as tables and boards look them up."""
    groups = frame.dropna(subset="value").set_index("seed").groupby(["row", "reading", "metric"], sort=False)
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


def _with_values(about: pd.DataFrame, records: Mapping[str, Record]) -> pd.DataFrame:
    """Give every line its run's values, a line for each."""
    values = [{"run": name, **value} for name, record in records.items() for value in _values(record)]
    return about.merge(pd.DataFrame(values, columns=["run", "reading", "metric", "value"]), how="left", on="run")


def _values(record: Record) -> Iterator[dict[str, Any]]:
    """The metrics of a record's readings that are one number."""
    for reading, name in READING.items():
        for metric, value in (record.get(name) or {}).items():
            if isinstance(value, float):
                yield {"reading": reading, "metric": metric, "value": value}


def place_columns(row: Row | None) -> dict[str, Any]:
    """Where a row stands, as columns; without a row they are empty."""
    columns = ", ".join(f"{name}={value}" for name, value in row.columns.items()) if row else None
    names = (row.table, row.dataset, row.method) if row else (None, None, None)
    return {**dict(zip(("table", "dataset", "method"), names, strict=True)), "columns": columns}
