"""Reading and checking a run's files: ``config.yaml``, ``metrics.jsonl`` and ``record.json``.

Wall-clock values are under keys named ``timing``, hardware and versions under ``environment``; without these two, two
runs of the same configuration and code version give the same bytes.

The readings of a complete record follow from its rows and are checked against them on every read. Since schema 2 its
``digest`` also covers everything else in the record and the rows except those two keys. It detects damage and
accidental edits, not forgery: anybody can compute a digest.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmark.files import problem, read_text, regular
from datamodules.common.errors import RunError

SCHEMA_VERSION = 2  # 1 had no digest
STATUSES = ("running", "complete", "failed")
READINGS = ("final", "best", "last_k_mean")
SEVERAL = ("code_versions", "method_sources")
"""Entries of ``environment`` that list more than one thing if the run was continued with other code."""

AVERAGED = "averaged"  # additional reading of runs with ``average_last``
BY_CLASS = "acc_by_class"  # the only list among a row's metrics
READING = {"best": "best", "last": "final", "last_k_mean": "last_k_mean", "averaged": AVERAGED}  # values of ``report``
FACTS = ("partition_hash", "data_sha256", "labelled_histogram")
RESTORE = "restore the file as the run wrote it, or delete the folder to start over"
SINGLE = (str, float, int, type(None))  # values of JSON without parts, ``bool`` among them
TAIL = 1 << 16  # bytes at the end of `metrics.jsonl` sure to contain its last row

Row = dict[str, Any]
Record = dict[str, Any]

_SCHEMA: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "run_id": str,
    "status": str,
    "method": str,
    "dataset": str,
    "scale": str,
    "config": dict,
    "seeds": dict,
    "partition_hash": (str, type(None)),
    "data_sha256": (dict, type(None)),
    "labelled_histogram": (list, type(None)),
    "code_version": str,
    "rounds": dict,
    "final": (dict, type(None)),
    "best": (dict, type(None)),
    "last_k_mean": (dict, type(None)),
    "bytes_up": int,
    "bytes_down": int,
    "error": (str, type(None)),
    "timing": dict,
    "environment": dict,
}
_INSIDE: dict[str, dict[str, type | tuple[type, ...]]] = {
    "config": {"method": dict, "data": dict},
    "config.method": {"class_path": str},
    "config.data": {"class_path": str},
    "rounds": {"done": int, "total": int},
    "timing": {"seconds": (int, float)},
}

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Timing(BaseModel):
    model_config = ConfigDict(strict=True)
    seconds: Number | None = None


class _Row(BaseModel):
    """Required columns of a row, and optional ones that the code relies on."""

    model_config = ConfigDict(strict=True)
    round: Count
    acc: Number | None
    bytes_up: Count = 0
    bytes_down: Count = 0
    skipped: Count = 0
    warmup: bool = False
    timing: _Timing = _Timing()


def readings(rows: Sequence[Row], last_k: int) -> dict[str, dict[str, Any]]:
    """Compute ``final``, ``best`` (earliest round of highest ``acc`` after the warm-up) and ``last_k_mean``.

    The metrics are a row's float entries and ``acc_by_class``. ``last_k_mean`` averages the rows among the last
    ``last_k`` rounds, each metric over the rows that have it.
    """
    final, last = rows[-1], rows[-1]["round"]
    own = [row for row in rows if not row.get("warmup")] or rows
    best = max(own, key=lambda row: (row["acc"] if row["acc"] is not None else float("-inf"), -row["round"]))
    recent = [_metrics(row) for row in rows if row["round"] > last - last_k]
    names = dict.fromkeys(name for row in recent for name in row)
    means = {name: _mean([row[name] for row in recent if name in row]) for name in names}
    return {
        "final": {"round": final["round"], **_metrics(final)},
        "best": {"round": best["round"], **_metrics(best)},
        "last_k_mean": {"rounds": len(recent), **means},
    }


def read_rows(path: Path) -> list[Row]:
    """Read the rows of ``metrics.jsonl`` in a run's folder; a torn last line is left out.

    Raises:
        RunError: the file cannot be read, a line before the last is not a row, a row lacks a required column or has one
            of the wrong type, or its round is not after that of the previous row.
    """
    file = path / "metrics.jsonl"
    try:
        lines = read_text(file, errors="replace").split("\n") if file.exists() else []
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror}); {RESTORE}") from None
    rows: list[Row] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = _row(line)
        except ValueError:
            if number == len(lines) - 1:
                break
            raise RunError(f"{file}: line {number} is damaged; {RESTORE}") from None
        try:
            _Row.model_validate(row)
        except ValidationError as error:
            raise RunError(f"{file}: line {number} is not a row of a run: {problem(error)}; {RESTORE}") from None
        if rows and row["round"] <= rows[-1]["round"]:
            raise RunError(f"{file}: line {number} has round {row['round']} after round {rows[-1]['round']}; {RESTORE}")
        rows.append(row)
    return rows


def last_row(path: Path) -> Row | None:
    """Read the last complete row of ``metrics.jsonl`` only; ``None`` if it cannot be read."""
    try:
        with open(path / "metrics.jsonl", "rb", opener=regular) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return _row(file.read().split(b"\n")[-2])
    except (OSError, ValueError, IndexError):
        return None


def code_versions(record: Record) -> list[str]:
    """Return all code versions of a run; several if it was continued with another version."""
    return list(record["environment"].get("code_versions", [record["code_version"]]))


def method_sources(record: Record) -> list[str]:
    """Return the digests of the code of the method that made a run; several if it was continued with edited code."""
    recorded = record["environment"]
    return list(recorded.get("method_sources") or filter(None, [recorded.get("method_source")]))


def read_record(path: Path) -> Record:
    """Read and validate ``record.json`` in a run's folder; a complete one is checked against its rows.

    Raises:
        RunError: missing, not JSON, not a record, or not as the run wrote it.
    """
    file = path / "record.json"
    if not os.path.lexists(file):
        raise RunError(f"there is no run at {path}: it has no record.json")
    try:
        record = json.loads(read_text(file), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete the folder to start over") from None
    validate(record, str(file))
    if record.get("status") == "complete":
        _check_rows(record, path)
    return dict(record)


def digest(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """SHA-256 of a record and its rows as canonical JSON, without itself and what may differ between equal runs.

    Args:
        record: the record.
        rows: rows of ``metrics.jsonl`` as read.
    """
    bare = {key: value for key, value in record.items() if key != "digest"}
    text = json.dumps([without_clock(bare), without_clock(list(rows))], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_rows(record: Record, path: Path) -> None:
    """Check that a complete record agrees with its rows.

    Raises:
        RunError: a row is missing, or a row or the record was changed.
    """
    remedy = "restore both files as the run wrote them, or delete the folder to run it again"
    rows = read_rows(path)
    try:
        last, found = record["rounds"]["total"] - 1, readings(rows, record["config"]["last_k"])
        complete = rows[-1]["round"] == last
    except (LookupError, TypeError, AttributeError):
        complete, found = False, {}
    if not complete:
        raise RunError(f"{path / 'metrics.jsonl'}: rows are missing, or do not belong to this run; {remedy}")
    for name, reading in found.items():
        told = record[name]
        if wrong := [key for key in {**reading, **told} if reading.get(key) != told.get(key)]:
            raise RunError(
                f"{path}: record.json has {name}.{wrong[0]} = {told.get(wrong[0])}, but the rows of metrics.jsonl give "
                f"{reading.get(wrong[0])}; {remedy}"
            )
    if record["schema_version"] > 1 and record.get("digest") != digest(record, rows):
        raise RunError(f"{path}: record.json or metrics.jsonl is not as the run wrote it: the digest differs; {remedy}")


def validate(record: Mapping[str, Any], where: str) -> None:
    """Check a record against the schema.

    Raises:
        RunError: names every missing key and wrong type.
    """
    if not isinstance(record, Mapping):
        raise RunError(f"{where}: not a record")
    if isinstance(record.get("schema_version"), int) and record["schema_version"] > SCHEMA_VERSION:
        raise RunError(f"{where}: schema {record['schema_version']} is newer than {SCHEMA_VERSION}; update fssl-bench")
    problems = _mistyped(record, _SCHEMA)
    for place, schema in _INSIDE.items():
        part: Any = record
        for name in place.split("."):
            part = part.get(name) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping):  # otherwise reported already
            problems += _mistyped(part, schema, f"{place}.")
    if not problems:
        saved = record["timing"].get("saved_rounds", 0)
        for name in SEVERAL:
            texts = record["environment"].get(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                problems.append(f"environment.{name} is not a list of texts")
        if type(saved) is not int:
            problems.append(f"timing.saved_rounds is {type(saved).__name__}")
        if not isinstance(record.get(AVERAGED), dict | None):
            problems.append(f"{AVERAGED} is {type(record[AVERAGED]).__name__}")
    if record.get("status") not in STATUSES:
        problems.append(f"status is {record.get('status')!r}")
    elif record["status"] == "complete":
        needed: Iterable[str] = (*READINGS, *FACTS)
        if isinstance(config := record.get("config"), Mapping) and config.get("average_last"):
            needed = (*needed, AVERAGED)
        problems += [f"{key} is empty" for key in needed if record.get(key) is None]
    elif record["status"] == "failed" and not record.get("error"):
        problems.append("error is empty")
    if problems:
        raise RunError(f"{where}: not a valid record: {'; '.join(problems)}")


def without_clock(value: Any) -> Any:
    """Return a record or row without ``timing`` and ``environment``, which must be equal byte for byte."""
    if isinstance(value, SINGLE):
        return value
    if isinstance(value, Mapping):
        return {k: without_clock(v) for k, v in value.items() if k not in ("timing", "environment")}
    if isinstance(value, list):  # most are long, and of numbers
        return [v if isinstance(v, SINGLE) else without_clock(v) for v in value]
    return value


def _metrics(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is None or type(value) is float or name == BY_CLASS}


def _mean(values: Sequence[Any]) -> Any:
    """Average numbers, or lists entry by entry, ignoring ``None``; ``None`` if all are.

    Numbers are added one by one, since ``sum`` rounds differently from Python 3.12 on.
    """
    if isinstance(values[0], list):
        return [_mean(entries) for entries in zip(*values, strict=True)]
    known = [value for value in values if value is not None]
    return reduce(add, known) / len(known) if known else None


def _row(line: str | bytes) -> Row:
    row = _decoder().decode(line if isinstance(line, str) else line.decode())
    if not isinstance(row, dict) or not isinstance(row.get("round"), int):
        raise ValueError("not a row")
    return row


@cache
def _decoder() -> json.JSONDecoder:
    """One for all rows: ``json.loads`` would make one for each."""
    return json.JSONDecoder(parse_constant=_no_number)


def _mistyped(values: Mapping[str, Any], schema: Mapping[str, type | tuple[type, ...]], before: str = "") -> list[str]:
    """List missing keys and wrong types in a record or a part of it."""
    missing = [f"{before}{key} is missing" for key in schema if key not in values]
    return missing + [
        f"{before}{key} is {type(values[key]).__name__}"
        for key, kind in schema.items()
        if key in values and (not isinstance(values[key], kind) or isinstance(values[key], bool))
    ]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
