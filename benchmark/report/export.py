"""All results as one frame, for a release: a line for each run, reading and row of a suite."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.runs.environment import hardware
from benchmark.runs.records import AVERAGED, READINGS, Record, code_versions, read_record
from benchmark.suites.places import Place, places, places_of
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

ENDED = ("complete", "failed")


def export(results: Path, file: Path, suites: Sequence[Suite]) -> int:
    """Write all runs that have ended to a Parquet file and, beside it, to a CSV file.

    Args:
        results: folder that holds ``runs``.
        file: the Parquet file.
        suites: those whose rows are named.

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
    lines = []
    for name, record in ended.items():
        rows: list[Place | None] = [*places_of(record, known[record["scale"]])]
        for place in rows or [None]:
            lines += _lines(name, record, place)
    frame = pd.DataFrame(lines).convert_dtypes()
    file.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(file, index=False)
    frame.to_csv(file.with_suffix(".csv"), index=False, lineterminator="\n")
    return len(ended)


def _lines(name: str, record: Record, place: Place | None) -> list[dict[str, Any]]:
    """One line for each reading; one without a reading for a run that has none, because it failed."""
    row = place.row if place else None
    about = {
        "suite": place.suite.paper if place else None,
        "scale": record["scale"],
        "table": row.table if row else None,
        "dataset": row.dataset if row else None,
        "row": row.method if row else None,
        "columns": ", ".join(f"{name}={value}" for name, value in row.columns.items()) if row else None,
        "method": record["config"]["method"]["class_path"],
        "data": record["config"]["data"]["class_path"],
        "seed": record["config"]["seed"],
        "run": name,
        "status": record["status"],
    }
    spent = {
        "rounds": record["rounds"]["done"],
        "bytes_up": record["bytes_up"],
        "bytes_down": record["bytes_down"],
        "seconds": record["timing"]["seconds"],
        "partition_hash": record["partition_hash"],
        "code": ", ".join(code_versions(record)),
        "hardware": hardware(record["environment"]),
    }
    names = [reading for reading in (*READINGS, AVERAGED) if record.get(reading)]
    found = [{**about, "reading": name, **spent, **_metrics(record[name])} for name in names]
    return found or [{**about, "reading": None, **spent}]


def _metrics(reading: dict[str, Any]) -> dict[str, float]:
    """The metrics of a reading that are one number."""
    return {name: value for name, value in reading.items() if isinstance(value, float)}
