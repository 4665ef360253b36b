"""All results of a release as one table, in Parquet and in CSV, with a card for Hugging Face."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.report.formats import inert, pipe_table
from benchmark.runs.code_identity import package_version
from benchmark.runs.environment import hardware
from benchmark.runs.records import READING, Record, Row, code_versions, read_record, read_rows
from benchmark.suites.suite import Place, Suite, places, places_of
from datamodules.common.errors import ConfigError
from datamodules.common.files import write_atomic
from datamodules.common.yaml import dump_yaml

TEXT, COUNT, NUMBER = "string", "Int64", "float64"
ROW = ("suite", "table", "dataset", "method", "columns")
"""Columns that name a row."""
COLUMNS = {
    "id": (TEXT, "names the line, the same in every release"),
    "suite": (TEXT, "suite of the row that the run is for; empty for a run of no suite"),
    "scale": (TEXT, "the suite's scale, or `custom`"),
    "table": (TEXT, "table of the row"),
    "dataset": (TEXT, "data set, as the table names it"),
    "method": (TEXT, "the row's label in the table"),
    "columns": (TEXT, "what distinguishes rows of one label"),
    "class": (TEXT, "class of the method"),
    "data": (TEXT, "class of the data set"),
    "seed": (COUNT, "seed of the run"),
    "run": (TEXT, "folder of the run"),
    "status": (TEXT, "`complete`, or `failed`: one line without numbers, and the rounds before"),
    "reading": (TEXT, "`best`, `last`, `last_k_mean`, `averaged`, or `round` for an evaluated round"),
    "round": (COUNT, "number of the round, from 0"),
    "rounds": (COUNT, "rounds of the run that were done"),
    "seconds": (NUMBER, "of the whole run; of an evaluated round, its own"),
    "partition_hash": (TEXT, "identifies the clients' split"),
    "data_sha256": (TEXT, "identifies the files of the data"),
    "code": (TEXT, "versions of the code"),
    "hardware": (TEXT, "what it was run on"),
    "bytes_up": (COUNT, "sent by clients, until the round or in the whole run"),
    "bytes_down": (COUNT, "sent to clients, likewise"),
}
"""Type and meaning of the columns. Behind them come the metrics, numbers as in ``metrics.jsonl``."""
ABOUT = "Results of federated semi-supervised learning: methods by data sets, seeds, readings and rounds"
METRIC = (NUMBER, "metric, see docs/usage/records.md")


def export(results: Path, file: Path, suites: Sequence[Suite]) -> int:
    """Write all runs that have ended to a Parquet file; beside it a CSV file and ``-card.md``.

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
    columns = COLUMNS | {str(name): METRIC for name in frame if name not in COLUMNS}
    types = {name: kind for name, (kind, _) in columns.items()}
    frame = frame.reindex(columns=[*types]).astype(types)
    file.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(file, index=False)
    frame.map(inert).to_csv(file.with_suffix(".csv"), index=False, lineterminator="\n")
    write_atomic(file.with_name(f"{file.stem}-card.md"), card(file, columns))
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


def card(file: Path, columns: Mapping[str, tuple[str, str]]) -> str:
    """The data card, the README of a data set at Hugging Face; with type and meaning of each column."""
    head = {
        "pretty_name": f"Results of fssl-bench {package_version()}",
        "tags": ["federated-learning", "semi-supervised-learning", "benchmark"],
        "configs": [{"config_name": "default", "data_files": file.name}],
        "dataset_info": {"features": [{"name": name, "dtype": kind.lower()} for name, (kind, _) in columns.items()]},
    }
    table = pipe_table(["column", "meaning"], [[f"`{name}`", meaning] for name, (_, meaning) in columns.items()])
    return f"---\n{dump_yaml(head)}---\n\n# {head['pretty_name']}\n\n{ABOUT}.\n\n{table}\n"
