"""The files of a run, which are the truth about it: ``config.yaml``, ``metrics.jsonl`` and ``record.json``.

Wall-clock values live under keys named ``timing``, hardware and versions under ``environment``; with these
two removed, two runs of one configuration and one code version give the same bytes.

The readings of a complete record follow from its rows and are checked against them whenever it is read. Since schema 2
its ``digest`` also covers everything else in the record and in the rows but those two keys. That finds damage and
slips; whoever wants to forge a record can compute a digest, too.
"""

import hashlib
import json
import os
import shutil
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmark.config import Run, differences, identity
from benchmark.files import dump_yaml, finite, problem, read_text, regular, write_atomic
from benchmark.registry import KINDS, imported
from benchmark.runs.background import repeatedly
from benchmark.runs.environment import code_version, environment, source_digest
from benchmark.runs.lock import NAME as LOCK
from benchmark.runs.lock import alive_elsewhere, locked, run_lock
from datamodules.common.errors import RunError
from datamodules.common.files import named

SCHEMA_VERSION = 2  # 1 had no digest
STATUSES = ("running", "complete", "failed")
READINGS = ("final", "best", "last_k_mean")
AVERAGED = "averaged"  # a further reading, of the runs that have ``average_last``
BY_CLASS = "acc_by_class"  # the one list among the metrics of a row
READING = {"best": "best", "last": "final", "last_k_mean": "last_k_mean", "averaged": AVERAGED}  # ``report``'s words
FACTS = ("partition_hash", "data_sha256", "labelled_histogram")
CHECKPOINTS = ("checkpoint.pt", "checkpoint.pt.previous")  # what a run resumes from
RESTORE = "bring the file back as the run wrote it, or delete the folder to start over"
TAIL = 1 << 16  # bytes at the end of `metrics.jsonl` that surely hold its last row

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
    """What every row has, and the columns that more than a table or a plot rests on."""

    model_config = ConfigDict(strict=True)
    round: Count
    acc: Number | None
    bytes_up: Count = 0
    bytes_down: Count = 0
    skipped: Count = 0
    warmup: bool = False
    timing: _Timing = _Timing()


class RunFolder:
    """One run on disk.

    Args:
        path: its folder; made by ``open``.
        heartbeat_s: seconds between updates of ``record.json`` while the run goes on.
    """

    def __init__(self, path: str | Path, heartbeat_s: float = 5.0) -> None:
        self.path, self.heartbeat_s = Path(path), heartbeat_s
        self._record: Record = {}
        self._opened = self._written = time.monotonic()
        self._spent = 0.0
        self._last = -1
        self._rows = hashlib.sha256()
        self._writing = threading.Lock()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process out of this run, and let its heart beat, while the context is open."""

        def live() -> None:
            if self._record.get("status") == "running":
                with suppress(OSError):  # the run itself will meet the full disk
                    self.beat()

        with run_lock(self.path), repeatedly(live, self.heartbeat_s):
            yield

    @property
    def opened(self) -> bool:
        """Whether the run has begun: its record is kept by ``open``."""
        return bool(self._record)

    def discard(self) -> None:
        """Delete what a run has left, so that it starts over; nothing happens where there is no run.

        Raises:
            RunLocked: a process works on it.
        """
        if not self.path.is_dir():
            return
        with run_lock(self.path):
            for left in self.path.iterdir():
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def forget(self) -> None:
        """Remove the folder of a run that never began: one that holds nothing but its lock."""
        with suppress(OSError):
            if {file.name for file in self.path.iterdir()} <= {LOCK}:
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    @property
    def rows_digest(self) -> str:
        """SHA-256 of the rows so far, as the run has written them: a checkpoint's, so that it knows them again."""
        return self._rows.hexdigest()

    @property
    def origin(self) -> dict[str, Any]:
        """What a checkpoint says of where it comes from."""
        return {key: self._record[key] for key in ("run_id", "partition_hash", "code_version")}

    def open(self, run: Run, facts: Mapping[str, Any] | None = None) -> None:
        """Start the record, or take up that of an interrupted run (then ``rewind`` comes next).

        Args:
            run: what is run.
            facts: ``partition_hash`` (str), ``data_sha256`` ({file: digest}) and ``labelled_histogram``
                (int ``[clients, classes]``); further keys are recorded as they are. ``None``: not known yet.

        Raises:
            RunError: the folder holds another run, or the interrupted run had other defaults, another partition or
                other data.
        """
        config = run.config
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(".*.tmp"):  # by a write that a kill interrupted
            left.unlink(missing_ok=True)
        before = self.record() if (self.path / "record.json").exists() else None
        facts = finite(dict(facts or {}))
        if before is not None:
            self._check_resume(before, run, facts)
        now, code, codes = _now(), code_version(), []
        if before is not None:
            codes = code_versions(before)
        timing: dict[str, Any] = before["timing"] if before else {"started": now, "seconds": 0.0}
        data_args = config.data.init_args
        self._spent, self._opened = float(timing["seconds"]), time.monotonic()
        self._record = {
            "schema_version": SCHEMA_VERSION,
            "run_id": run.id,
            "status": "running",
            "method": config.method.name,
            "dataset": config.data.name,
            "scale": config.scale,
            "config": finite(identity(config)),
            "seeds": {"run": config.seed, "partition": data_args.get("partition_seed")},
            **{key: before[key] if before else None for key in FACTS},
            **facts,
            "code_version": code,
            "rounds": {"done": 0, "total": config.rounds},
            **dict.fromkeys(READINGS),
            **({AVERAGED: None} if config.average_last else {}),
            "bytes_up": 0,
            "bytes_down": 0,
            "error": None,
            "timing": {**timing, "updated": now},
            "environment": {
                **environment(),
                **_runtime(run),
                "precision": config.precision,
                "method_source": method_source(run),
                "code_versions": list(dict.fromkeys([*codes, code])),
            },
        }
        if before is not None:
            self._keep(config.rounds)
        write_atomic(self.path / "config.yaml", dump_yaml(identity(config)))
        self._write()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add an evaluated round; it is on disk when this returns.

        Args:
            row: ``round`` (int), metrics and other means (floats), counts (ints), ``timing`` (wall-clock).

        Raises:
            RunError: ``round`` does not come after the last one.
        """
        if row["round"] <= self._last:
            raise RunError(f"{self.path}: round {row['round']} after {self._last}; rewind before resuming")
        path = self.path / "metrics.jsonl"
        line = _line(row)
        with named(path), open(path, "a", encoding="utf-8", opener=regular) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._rows.update(line.encode())
        self._last = int(row["round"])
        self._record |= _sent(row)
        self.beat(self._last + 1)

    def rewind(self, next_round: int, rows_digest: str | None = None) -> None:
        """Forget rows of ``next_round`` and later, and, where that is all, the code that made them.

        Args:
            next_round: the round that the run continues with.
            rows_digest: that of the rows before it, as its checkpoint knows it; ``None``: it does not.

        Raises:
            RunError: an evaluated round before ``next_round`` has no row, or the rows before it are others.
        """
        before = [row for row in self.rows() if row["round"] < next_round]
        every, found = self._record["config"]["eval_every"], {row["round"] for row in before}
        if lost := [n for n in range(next_round) if (n + 1) % every == 0 and n not in found]:
            raise RunError(
                f"{self.path}: the run was at round {next_round}, but metrics.jsonl has no row of round {lost[0]}; "
                "bring the file back, or delete the folder to start over"
            )
        if rows_digest is not None and _digest_of(before) != rows_digest:
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: the rows before round {next_round} are not those that the run had "
                "written when its checkpoint was saved; bring the file back, or delete the folder to start over"
            )
        self._keep(next_round)
        if next_round == 0:
            self._record["environment"]["code_versions"] = [self._record["code_version"]]

    def _keep(self, next_round: int) -> None:
        """Leave out rows of ``next_round`` and later, and a last line that a kill has torn."""
        kept = [row for row in self.rows() if row["round"] < next_round]
        lines = "".join(map(_line, kept))
        write_atomic(self.path / "metrics.jsonl", lines)
        self._rows = hashlib.sha256(lines.encode())
        self._last = kept[-1]["round"] if kept else -1
        self._record |= _sent(kept[-1] if kept else {})

    def rows(self) -> list[Row]:
        """Evaluated rounds so far.

        Raises:
            RunError: a line other than the last is damaged.
        """
        return read_rows(self.path)

    def record(self) -> Record:
        """The record on disk, validated."""
        return read_record(self.path)

    def beat(self, rounds_done: int | None = None) -> None:
        """Note that the run is alive (``timing.updated``), at most every ``heartbeat_s`` seconds."""
        if rounds_done is not None:
            self._record["rounds"]["done"] = rounds_done
        if time.monotonic() - self._written >= self.heartbeat_s:
            self._write()

    def saved(self, rounds: int) -> None:
        """Note that the run would continue after so many rounds: those in its checkpoint."""
        self._record["timing"]["saved_rounds"] = rounds
        self._write()

    def finish(
        self, averaged: Mapping[str, Any] | None = None, confusion: Sequence[Sequence[int]] | None = None
    ) -> Record:
        """Compute the readings from the rows, write the complete record and return it.

        The digest also covers what no row tells:

        Args:
            averaged: the reading of the averaged model.
            confusion: of the last round's model, test images by true class (lines) and predicted one; a line is
                recorded as one text, as in ``class_counts``.

        Raises:
            RunError: the last round has not been evaluated, or the rows are not those that the run has written.
        """
        rows, total = self.rows(), self._record["rounds"]["total"]
        if _digest_of(rows) != self.rows_digest:
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: the rows are not those that the run has written; bring the file back, "
                "or delete the folder to start over"
            )
        if not rows or rows[-1]["round"] != total - 1:
            raise RunError(f"{self.path}: the last of {total} rounds has no row; the run is not finished")
        self._record |= readings(rows, self._record["config"]["last_k"])
        self._record |= {AVERAGED: finite(dict(averaged))} if averaged else {}
        self._record |= {"confusion": [" ".join(map(str, line)) for line in confusion]} if confusion else {}
        self._record |= _sent(rows[-1])
        self._record["skipped"] = rows[-1].get("skipped", 0)
        self._record["rounds"]["done"] = total
        self._record["status"] = "complete"
        self._record["timing"].pop("saved_rounds", None)
        self._record["digest"] = digest(self._record, rows)
        self._write()
        return self._record

    def fail(self, error: BaseException, run: Run | None = None) -> None:
        """Keep the traceback in the record; ``run`` opens it if it failed before it was opened.

        Where nothing can be written (a full disk, a read-only folder) the record stays as it is: the caller has an
        error to report that matters more.
        """
        if not self._record and run is not None:
            with suppress(RunError, OSError):  # what cannot be opened keeps the record it has
                self.open(run)
        if self._record:
            self._record["error"] = "".join(traceback.format_exception(error))
            self._record["status"] = "failed"
            self._record["rounds"]["done"] = max(self._record["rounds"]["done"], self._last + 1)
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        with self._writing:
            self._written = time.monotonic()
            timing = self._record["timing"]
            timing["updated"] = _now()
            timing["seconds"] = round(self._spent + self._written - self._opened, 3)
            validate(self._record, str(self.path))
            write_atomic(self.path / "record.json", json.dumps(self._record, indent=1, allow_nan=False) + "\n")

    def _check_resume(self, before: Record, run: Run, facts: Mapping[str, Any]) -> None:
        if before["run_id"] != run.id:
            raise RunError(f"{self.path}: holds run {before['run_id']}, not {run.id}; use another folder")
        if changed := differences(before["config"], run.config):
            raise RunError(f"{self.path}: {'; '.join(changed)}. Delete the folder to run it again")
        if not self.rows() and not any((self.path / name).exists() for name in CHECKPOINTS):
            return
        for key in ("partition_hash", "data_sha256"):
            if key in facts and before[key] is not None and before[key] != facts[key]:
                raise RunError(
                    f"{self.path}: cannot resume, {key} was {before[key]} and is now {facts[key]}; "
                    "bring the old data back, or delete the folder to start over"
                )


def _sent(row: Mapping[str, Any]) -> dict[str, int]:
    """Bytes up to and with a row."""
    return {key: row.get(key, 0) for key in ("bytes_up", "bytes_down")}


def readings(rows: Sequence[Row], last_k: int) -> dict[str, dict[str, Any]]:
    """``final``, ``best`` (round of highest ``acc`` after the warm-up, the earliest of equals) and ``last_k_mean``.

    The metrics are the float entries of a row, and ``acc_by_class``. ``last_k_mean`` averages the rows among the last
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
    """Rows of ``metrics.jsonl`` in a run's folder; a torn last line is left out.

    Raises:
        RunError: the file cannot be read, a line before the last is no row, a row lacks what every row has or holds it
            in another type, or its round does not come after that of the row before.
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
            raise RunError(f"{file}: line {number} is no row of a run: {problem(error)}; {RESTORE}") from None
        if rows and row["round"] <= rows[-1]["round"]:
            raise RunError(f"{file}: line {number} has round {row['round']} after round {rows[-1]['round']}; {RESTORE}")
        rows.append(row)
    return rows


def last_row(path: Path) -> Row | None:
    """The last whole row of ``metrics.jsonl``, without reading the others; ``None`` if it cannot be read."""
    try:
        with open(path / "metrics.jsonl", "rb", opener=regular) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return _row(file.read().split(b"\n")[-2])
    except (OSError, ValueError, IndexError):
        return None


def code_versions(record: Record) -> list[str]:
    """All versions of the code that took part in a run; several where another one continued it."""
    return list(record["environment"].get("code_versions", [record["code_version"]]))


def read_record(path: Path) -> Record:
    """The validated ``record.json`` in a run's folder; a complete one is checked against its rows.

    Raises:
        RunError: missing, not JSON, not a record, or not what the run has written.
    """
    file = path / "record.json"
    try:
        record = json.loads(read_text(file), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete the folder to start over") from None
    validate(record, str(file))
    if record.get("status") == "complete":
        _check_rows(record, path)
    return dict(record)


def digest(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """SHA-256 of a record and its rows as canonical JSON, without itself and what two equal runs may differ in.

    Args:
        record: the record.
        rows: rows of ``metrics.jsonl``, as they are read.
    """
    bare = {key: value for key, value in record.items() if key != "digest"}
    text = json.dumps([without_clock(bare), without_clock(list(rows))], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_rows(record: Record, path: Path) -> None:
    """See that a complete record says what its rows say.

    Raises:
        RunError: a row is missing or was changed, or the record was.
    """
    remedy = "bring both files back as the run wrote them, or delete the folder to run it again"
    rows = read_rows(path)
    try:
        last, found = record["rounds"]["total"] - 1, readings(rows, record["config"]["last_k"])
        complete = rows[-1]["round"] == last
    except (LookupError, TypeError, AttributeError):
        complete, found = False, {}
    if not complete:
        raise RunError(f"{path / 'metrics.jsonl'}: rows are missing, or are no rows of this run; {remedy}")
    for name, reading in found.items():
        told = record[name]
        if wrong := [key for key in {**reading, **told} if reading.get(key) != told.get(key)]:
            raise RunError(
                f"{path}: record.json has {name}.{wrong[0]} = {told.get(wrong[0])}, but the rows of metrics.jsonl give "
                f"{reading.get(wrong[0])}; {remedy}"
            )
    if record["schema_version"] > 1 and record.get("digest") != digest(record, rows):
        raise RunError(f"{path}: record.json or metrics.jsonl is not what the run wrote: the digest differs; {remedy}")


def state(path: Path) -> str:
    """``missing``, ``running``, ``stale`` (was killed, can be resumed), ``failed``, ``complete``, or ``damaged`` (its
    record cannot be read, or is not what its run wrote).
    """
    return look(path).state


class RunState(NamedTuple):
    """What is on disk of a run: its state and, if it is complete, its record."""

    state: str
    record: Record | None = None


def look(path: Path) -> RunState:
    """The state of a run and, if it is complete, its record, which is read once for both."""
    try:
        return _look(path)
    except RunError:
        return RunState("damaged")


def state_of(run: Run) -> RunState:
    """``look``; a complete run that was made under other defaults than today's is ``outdated``."""
    found = look(run.folder)
    if found.record is not None and differences(found.record["config"], run.config):
        return RunState("outdated")
    return found


def _look(path: Path) -> RunState:
    known = (path / "record.json").exists()
    if known and (record := read_record(path))["status"] == "complete":
        return RunState("complete", record)
    if locked(path) or alive_elsewhere(path):
        return RunState("running")
    if not known:
        return RunState("missing")
    record = read_record(path)  # once more: the run may have ended before we asked for the lock
    if record["status"] == "running":
        return RunState("stale")
    return RunState(record["status"], record if record["status"] == "complete" else None)


def saved_rounds(path: Path) -> int | None:
    """Rounds that an unfinished run has in its checkpoint and need not do again; 0 without a checkpoint, ``None`` where
    the record does not say.
    """
    if not any((path / name).exists() for name in CHECKPOINTS):
        return 0
    try:
        known = read_record(path)["timing"].get("saved_rounds")
    except RunError:  # the run itself will say what is wrong with its record
        return None
    return None if known is None else int(known)


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
        if isinstance(part, Mapping):  # otherwise that has been said
            problems += _mistyped(part, schema, f"{place}.")
    if not problems:
        versions, saved = record["environment"].get("code_versions", []), record["timing"].get("saved_rounds", 0)
        if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
            problems.append("environment.code_versions is no list of texts")
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
    """A record or row without ``timing`` and ``environment``: what must be equal byte for byte."""
    if isinstance(value, Mapping):
        return {k: without_clock(v) for k, v in value.items() if k not in ("timing", "environment")}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


def method_source(run: Run) -> str | None:
    """Digest of the code of a run's method (``source_digest``)."""
    return source_digest(run.class_of("method"), imported(KINDS["method"].base))


def _runtime(run: Run) -> dict[str, Any]:
    """How the run was executed, without the folders of the machine and accounts elsewhere: records are shared."""
    return {k: v for k, v in asdict(run.config.runtime).items() if not (k.endswith("_dir") or k.startswith("wandb_"))}


def _metrics(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is None or type(value) is float or name == BY_CLASS}


def _mean(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of each entry of lists, where it is known; ``None`` where nowhere.

    Numbers are added one after the other: since Python 3.12 ``sum`` rounds differently.
    """
    if isinstance(values[0], list):
        return [_mean(entries) for entries in zip(*values, strict=True)]
    known = [value for value in values if value is not None]
    return reduce(add, known) / len(known) if known else None


def _row(line: str | bytes) -> Row:
    row = json.loads(line, parse_constant=_no_number)
    if not isinstance(row, dict) or not isinstance(row.get("round"), int):
        raise ValueError("not a row")
    return row


def _mistyped(values: Mapping[str, Any], schema: Mapping[str, type | tuple[type, ...]], before: str = "") -> list[str]:
    """What is missing of a record, or a part of it, and what has another type."""
    missing = [f"{before}{key} is missing" for key in schema if key not in values]
    return missing + [
        f"{before}{key} is {type(values[key]).__name__}"
        for key, kind in schema.items()
        if key in values and (not isinstance(values[key], kind) or isinstance(values[key], bool))
    ]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _digest_of(rows: Sequence[Row]) -> str:
    """``RunFolder.rows_digest`` of rows that were read."""
    return hashlib.sha256("".join(map(_line, rows)).encode()).hexdigest()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(dict(row)), allow_nan=False) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
