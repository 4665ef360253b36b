"""All results as one long frame: a line for each run, reading and metric. Tables, boards and exports are made of it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.runs.environment import hardware
from benchmark.runs.records import READING, Record, code_versions, read_record, read_rows
from benchmark.suites.places import Place, places, places_of
from benchmark.suites.plan import Plan, Row
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

ENDED = ("complete", "failed")
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
        {**_place(row), "row": row.full_name, "seed": seed, "run": key, "status": plan.found[key].state}
        for row in suite.rows
        for seed, key in plan.of_row.get(row.full_name, {}).items()
    ]
    records = {key: found.record for key, found in plan.found.items() if found.record is not None}
    return _with_values(pd.DataFrame(about, columns=[*_place(None), "row", "seed", "run", "status"]), records)


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


def export(results: Path, file: Path, suites: Sequence[Suite]) -> int:
    """Write all runs that have ended to a Parquet file and, beside it, to a CSV file.

    Args:
        results: folder that holds ``runs``.
        file: the Parquet file.
        suites: those whose rows are named; a run of none of them has lines without a row.

    Returns:
        The number of runs.

    Raises:
        ConfigError: the file is not named ``.parquet``, or no run has ended.
        RunError: a record is damaged.
    """
    if file.suffix != ".parquet":
        raise ConfigError(f"--export {file}: name a file that ends in .parquet; a .csv is written beside it")
    records = {path.parent.name: read_record(path.parent) for path in sorted((results / "runs").glob("*/record.json"))}
    ended = {name: record for name, record in records.items() if record["status"] in ENDED}
    if not ended:
        raise ConfigError(f"{results / 'runs'}: there is no run that has ended")
    known = {scale: places(suites, scale) for scale in {record["scale"] for record in ended.values()}}
    about = []
    for name, record in ended.items():
        rows: list[Place | None] = [*places_of(record, known[record["scale"]])]
        about += [_about(name, record, place) for place in rows or [None]]
    frame = _with_values(pd.DataFrame(about), ended).convert_dtypes()
    file.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(file, index=False)
    frame.to_csv(file.with_suffix(".csv"), index=False, lineterminator="\n")
    return len(ended)


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


def _place(row: Row | None) -> dict[str, Any]:
    columns = ", ".join(f"{name}={value}" for name, value in row.columns.items()) if row else None
    names = (row.table, row.dataset, row.method) if row else (None, None, None)
    return {**dict(zip(("table", "dataset", "method"), names, strict=True)), "columns": columns}


def _about(name: str, record: Record, place: Place | None) -> dict[str, Any]:
    """What was run, where it stands, what it took, and what made it."""
    return {
        "suite": place.suite.paper if place else None,
        "scale": record["scale"],
        **_place(place.row if place else None),
        "class": record["config"]["method"]["class_path"],
        "data": record["config"]["data"]["class_path"],
        "seed": record["config"]["seed"],
        "run": name,
        "status": record["status"],
        "rounds": record["rounds"]["done"],
        "bytes_up": record["bytes_up"],
        "bytes_down": record["bytes_down"],
        "seconds": record["timing"]["seconds"],
        "partition_hash": record["partition_hash"],
        "code": ", ".join(code_versions(record)),
        "hardware": hardware(record["environment"]),
    }
