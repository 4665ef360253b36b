"""All results of a release as one table, in Parquet and in CSV."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.report.formats import inert
from benchmark.runs.environment import hardware
from benchmark.runs.records import READING, Record, Row, code_versions, read_record, read_rows
from benchmark.suites.suite import Place, Suite, places, places_of
from datamodules.common.errors import ConfigError

TEXT, COUNT, NUMBER = "string", "Int64", "float64"
ROW = ("suite", "table", "dataset", "method", "columns")
"""Columns that name a row."""
COLUMNS = {
    "id": TEXT,
    "suite": TEXT,
    "scale": TEXT,
    "table": TEXT,
    "dataset": TEXT,
    "method": TEXT,
    "columns": TEXT,
    "class": TEXT,
    "data": TEXT,
    "seed": COUNT,
    "run": TEXT,
    "status": TEXT,
    "reading": TEXT,
    "round": COUNT,
    "rounds": COUNT,
    "seconds": NUMBER,
    "partition_hash": TEXT,
    "data_sha256": TEXT,
    "code": TEXT,
    "hardware": TEXT,
    "bytes_up": COUNT,
    "bytes_down": COUNT,
}
"""Types of the columns; docs/usage/records.md describes them. Behind them come the metrics of ``metrics.jsonl``."""


def export(results: Path, file: Path, suites: Sequence[Suite]) -> int:
    """Write all runs that have ended to a Parquet file, and to a CSV file beside it.

    Args:
        results: folder that holds ``runs``.
        file: the Parquet file.
        suites: those whose rows are named; a run of several rows has lines for each.

    Returns:
        The number of runs.

    Raises:
        ConfigError: the file is not named ``.parquet``, or no run has ended.
        RunError: a record is damaged.
    """
    if file.suffix != ".parquet":
        raise ConfigError(f"--export {file}: name a file that ends in .parquet; a .csv is written beside it")
    records = {path.parent: read_record(path.parent) for path in sorted((results / "runs").glob("*/record.json"))}
    ended = {folder: record for folder, record in records.items() if record["status"] != "running"}
    if not ended:
        raise ConfigError(f"{results / 'runs'}: there is no run that has ended")
    places_at = {scale: places(suites, scale) for scale in {record["scale"] for record in ended.values()}}
    lines = []
    for folder, record in ended.items():
        readings = list(_readings(record, read_rows(folder)))
        of_record: list[Place | None] = [*places_of(record, places_at[record["scale"]])]
        for place in of_record or [None]:
            about = _about(folder.name, record, place)
            row = "/".join(about[name] for name in ROW if about.get(name))
            for values in readings:
                number = f":{values['round']}" if values["reading"] == "round" else ""
                line_id = f"{folder.name}:{row}:{values['reading'] or record['status']}{number}"
                lines.append({**about, **values, "id": line_id})
    frame = pd.DataFrame(lines)
    types = COLUMNS | {str(name): NUMBER for name in frame if name not in COLUMNS}
    frame = frame.reindex(columns=[*types]).astype(types)
    file.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(file, index=False)
    frame.map(inert).to_csv(file.with_suffix(".csv"), index=False, lineterminator="\n")
    return len(ended)


def _readings(record: Record, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The numbers of a run: a line for each of its readings, or one without any, and one for each evaluated round."""
    metrics_of: dict[str | None, Any] = {name: record[key] for name, key in READING.items() if record.get(key)}
    for reading, metrics in (metrics_of or {None: {}}).items():
        yield {"reading": reading, **_numbers(metrics)}
    for row in rows:
        yield {"reading": "round", **_numbers(row), "seconds": row.get("timing", {}).get("seconds")}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "rounds" and isinstance(value, int | float)}


def _about(folder: str, record: Record, place: Place | None) -> dict[str, Any]:
    """What was run, where it stands, what it took, and what made it."""
    about: dict[str, Any] = {
        "scale": record["scale"],
        "class": record["config"]["method"]["class_path"],
        "data": record["config"]["data"]["class_path"],
        "seed": record["config"]["seed"],
        "run": folder,
        "status": record["status"],
        "rounds": record["rounds"]["done"],
        "seconds": record["timing"]["seconds"],
        "partition_hash": record["partition_hash"],
        "data_sha256": " ".join((record["data_sha256"] or {}).values()),
        "code": ", ".join(code_versions(record)),
        "hardware": hardware(record["environment"]),
        **{name: record[name] if record["status"] == "complete" else None for name in ("bytes_up", "bytes_down")},
    }
    if place:
        row = place.row
        about |= {"suite": place.suite.paper, "table": row.table, "dataset": row.dataset, "method": row.method}
        about["columns"] = ", ".join(f"{name}={value}" for name, value in row.columns.items()) or None
    return about
