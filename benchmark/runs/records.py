"""Reading and checking a run's files: ``metrics.jsonl`` and ``record.json``.

Wall-clock values are under keys named ``timing``, hardware and versions under ``environment``; without these two, two
runs of the same configuration and code version give the same bytes on one model of CPU with equal threads.

Models of pydantic say what the files hold. The readings of a complete record follow from its rows and are
checked against them on every read. Since schema 2 its ``digest`` also covers everything else in the record and the rows
except those two keys. It detects damage and accidental edits, not forgery: anybody can compute a digest.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json, to_json

from datamodules.common.errors import RunError

SCHEMA_VERSION = 2  # 1 had no digest
READINGS = ("final", "best", "last_k_mean")
SEVERAL = ("code_versions", "revisions")
"""Entries of ``environment`` that list more than one thing if the run was continued with other code."""

AVERAGED = "averaged"  # additional reading of runs with ``average_last``
BY_CLASS = "acc_by_class"  # the only list of a row that readings have, too
READING = {"best": "best", "last": "final", "last_k_mean": "last_k_mean", "averaged": AVERAGED}  # values of ``report``
FACTS = ("partition_hash", "data_sha256", "labelled_histogram")
CLOCK = ("timing", "environment")  # what may differ between equal runs
NESTED = (dict, list)
SOURCE = ", source "  # between a revision and the digest of the user's source
RESTORE = "restore the file as the run wrote it, or delete the folder to start over"

Row = dict[str, Any]
"""A row of ``metrics.jsonl`` as read, which is valid."""
Record = dict[str, Any]
"""A record as read, which is valid."""

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100 + 1e-6)]  # a weighted mean of hundreds may be a rounding error above


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Metrics(_Part):
    """Percentages of a model on the test set, and other means; ``None`` where a metric is not defined."""

    __pydantic_extra__: dict[str, Number | bool | str | list[Any] | dict[str, Any] | None]
    acc: Percent
    acc_clients: Percent | None = None
    acc_worst_clients: Percent | None = None
    auc: Percent | None = None
    precision: Percent | None = None
    recall: Percent | None = None
    acc_by_class: list[Percent | None] | None = None


class _RowTiming(_Part):
    """Wall-clock values of a row."""

    seconds: Number | None = None


class _RunRow(_Metrics):
    """An evaluated round."""

    round: Count
    bytes_up: Count = 0
    bytes_down: Count = 0
    skipped: Count = 0
    warmup: bool = False
    timing: _RowTiming = _RowTiming()


class _Class(_Part):
    """A class of the configuration."""

    class_path: str


class _Config(_Part):
    """What the code relies on in a recorded configuration."""

    method: _Class
    data: _Class
    last_k: Count
    average_last: Count = 0


class _Rounds(_Part):
    """Rounds of a run."""

    done: Count
    total: Count


class _Timing(_Part):
    """Wall-clock values of a run."""

    seconds: Number
    saved_rounds: int = 0


class _Environment(_Part):
    """Hardware and versions."""

    code_versions: list[str] = []
    revisions: list[str] = []


class _RunRecord(_Part):
    """A run: what was run, on which data, by which code, and what it gave."""

    schema_version: Annotated[int, Field(le=SCHEMA_VERSION)]
    run_id: str
    status: Literal["running", "complete", "failed"]
    method: str
    dataset: str
    scale: str
    config: _Config
    seeds: dict[str, int | None]
    partition_hash: str | None
    data_sha256: dict[str, str] | None
    labelled_histogram: list[Any] | None
    code_version: str
    rounds: _Rounds
    final: _Metrics | None
    best: _Metrics | None
    last_k_mean: _Metrics | None
    averaged: _Metrics | None = None
    bytes_up: Count
    bytes_down: Count
    error: str | None
    timing: _Timing
    environment: _Environment

    @model_validator(mode="after")
    def _whole(self) -> Self:
        needed: list[str] = []
        if self.status == "complete":
            needed = [*READINGS, "partition_hash", "data_sha256", *([AVERAGED] if self.config.average_last else [])]
        elif self.status == "failed":
            needed = ["error"]
        if empty := [name for name in needed if getattr(self, name) in (None, "")]:
            raise ValueError(f"{', '.join(empty)} is empty, but the run is {self.status}")
        return self


def readings(rows: Sequence[Row], last_k: int) -> dict[str, dict[str, Any]]:
    """Compute ``final``, ``best`` (earliest round of highest ``acc`` after the warm-up) and ``last_k_mean``.

    Where every round is warm-up, ``best`` is one of these. The metrics are a row's float entries and ``acc_by_class``.
    ``last_k_mean`` averages the rows among the last ``last_k`` rounds, each metric over the rows that have it.
    """
    final = rows[-1]
    after_warmup = [row for row in rows if not row.get("warmup")] or rows
    best = max(after_warmup, key=lambda row: (row["acc"], -row["round"]))
    recent = [_metrics(row) for row in rows if row["round"] > final["round"] - last_k]
    names = dict.fromkeys(name for metrics in recent for name in metrics)
    means = {name: _mean([metrics[name] for metrics in recent if name in metrics]) for name in names}
    return {
        "final": {"round": final["round"], **_metrics(final)},
        "best": {"round": best["round"], **_metrics(best)},
        "last_k_mean": {"rounds": len(recent), **means},
    }


def read_rows(path: Path) -> list[Row]:
    """Read the rows of ``metrics.jsonl`` in a run's folder; a torn last line is left out.

    Raises:
        RunError: the file cannot be read, a line is not a valid row, or its round is not after that of the last one.
    """
    file, rows = path / "metrics.jsonl", list[Row]()
    try:
        content = file.read_bytes() if file.exists() else b""
        for line in content.rpartition(b"\n")[0].splitlines():
            row = from_json(line, allow_inf_nan=False)
            _RunRow.model_validate(row)
            if rows and row["round"] <= rows[-1]["round"]:
                raise ValueError(f"round {row['round']} after round {rows[-1]['round']}")
            rows.append(row)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror}); {RESTORE}") from None
    except ValueError as error:
        raise RunError(f"{file}: line {len(rows) + 1} is not a row of a run: {problem(error)}; {RESTORE}") from None
    return rows


def last_row(path: Path) -> Row | None:
    """Read the last complete row of ``metrics.jsonl`` only; ``None`` if it cannot be read."""
    try:
        row = from_json((path / "metrics.jsonl").read_bytes().split(b"\n")[-2], allow_inf_nan=False)
        return row if isinstance(row["round"], int) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def code_versions(record: Record) -> list[str]:
    """Return all code versions of a run; several if it was continued with another version."""
    return list(record["environment"].get("code_versions", [record["code_version"]]))


def revisions(record: Record) -> list[str]:
    """Return the revisions of the code that made a run; several if it was continued with other code.

    Records from before there were revisions are of the first.
    """
    return record["environment"].get("revisions") or ["method 1, framework 1"]


def read_record(path: Path) -> Record:
    """Read and validate ``record.json`` in a run's folder; a complete one is checked against its rows.

    Raises:
        RunError: missing, not JSON, not a valid record, or not as the run wrote it.
    """
    file = path / "record.json"
    if not os.path.lexists(file):
        raise RunError(f"there is no run at {path}: it has no record.json")
    try:
        record = from_json(file.read_bytes(), allow_inf_nan=False)
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete the folder to start over") from None
    validate(record, str(file))
    if record["status"] == "complete":
        _check_rows(record, path)
    return record


def validate(record: Mapping[str, Any], where: str) -> None:
    """Check that a record is valid.

    Raises:
        RunError: names what is missing or wrong, five entries at most.
    """
    try:
        _RunRecord.model_validate(record)
    except ValidationError as error:
        raise RunError(f"{where}: not a valid record: {problem(error, most=5)}") from None


def digest(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """SHA-256 of a record and its rows as canonical JSON, without itself and what may differ between equal runs.

    Args:
        record: the record.
        rows: rows of ``metrics.jsonl`` as read.
    """
    bare = {key: value for key, value in record.items() if key != "digest"}
    text = json.dumps([without_clock(bare), without_clock(list(rows))], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def without_clock(value: Any) -> Any:
    """Return a record or row without ``timing`` and ``environment``; the rest must be equal byte for byte."""
    if isinstance(value, dict):
        return {k: without_clock(v) if isinstance(v, NESTED) else v for k, v in value.items() if k not in CLOCK}
    if isinstance(value, list) and value and isinstance(value[0], NESTED):  # most are long, and of numbers
        return [without_clock(v) for v in value]
    return value


def _check_rows(record: Record, path: Path) -> None:
    """Check that a complete record agrees with its rows.

    Raises:
        RunError: a row is missing, or a row or the record was changed.
    """
    remedy = "restore both files as the run wrote them, or delete the folder to run it again"
    rows = read_rows(path)
    if not rows or rows[-1]["round"] != record["rounds"]["total"] - 1:
        raise RunError(f"{path / 'metrics.jsonl'}: rows are missing, or do not belong to this run; {remedy}")
    for name, reading in readings(rows, record["config"]["last_k"]).items():
        recorded = record[name]
        if wrong := [key for key in {**reading, **recorded} if reading.get(key) != recorded.get(key)]:
            raise RunError(
                f"{path}: record.json has {name}.{wrong[0]} = {recorded.get(wrong[0])}, but the rows of metrics.jsonl "
                f"give {reading.get(wrong[0])}; {remedy}"
            )
    if record["schema_version"] > 1 and record.get("digest") != digest(record, rows):
        raise RunError(f"{path}: record.json or metrics.jsonl is not as the run wrote it: the digest differs; {remedy}")


def finite(value: Any) -> Any:
    """Plain data as JSON gives it back: tuples as lists, and ``None`` for floats that are not finite."""
    return from_json(to_json(value, inf_nan_mode="null"))


def problem(error: ValueError, most: int = 1) -> str:
    """Describe the first errors of a validation, each with its location; any other error by its message."""
    if not isinstance(error, ValidationError):
        return str(error)
    messages = []
    for details in error.errors(include_url=False, include_input=False)[:most]:
        place, message = ".".join(map(str, details["loc"])), details["msg"].removeprefix("Value error, ")
        if details["type"] == "missing":
            message = f"{place} is missing"
        elif details["type"] == "extra_forbidden":
            message = f"{place} is unknown"
        elif place:
            message = f"{place}: {message[0].lower()}{message[1:]}"
        messages.append(message)
    return "; ".join(messages)


def _metrics(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is None or type(value) is float or name == BY_CLASS}


def _mean(values: Sequence[Any]) -> Any:
    """Average numbers, or lists entry by entry, ignoring ``None``; ``None`` if all are.

    Numbers are added one by one, since ``sum`` rounds differently from Python 3.12 on.
    """
    if isinstance(values[0], list):
        return [_mean(entries) for entries in zip(*values, strict=True)]
    numbers = [value for value in values if value is not None]
    return reduce(add, numbers) / len(numbers) if numbers else None
