"""A run's files, from start to end or failure, including resumption after a kill."""

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
from pathlib import Path
from typing import Any

from benchmark.config import Run, differences, identity
from benchmark.files import dump_yaml, finite, regular, write_atomic
from benchmark.runs.background import repeatedly
from benchmark.runs.code_identity import code_version, revision, uncommitted
from benchmark.runs.environment import environment
from benchmark.runs.lock import NAME as LOCK
from benchmark.runs.lock import Claim, RunLocked, run_lock
from benchmark.runs.records import (
    AVERAGED,
    FACTS,
    READINGS,
    SCHEMA_VERSION,
    Record,
    Row,
    code_versions,
    digest,
    read_record,
    read_rows,
    readings,
    revisions,
    validate,
)
from benchmark.runs.states import CHECKPOINTS
from datamodules.common.errors import RunError
from datamodules.common.files import named


class RunFolder:
    """One run on disk.

    Args:
        path: its folder; created by ``open``.
        heartbeat_s: seconds between updates of ``record.json`` while the run is running.
    """

    def __init__(self, path: str | Path, heartbeat_s: float = 5.0) -> None:
        self.path, self.heartbeat_s = Path(path), heartbeat_s
        self._record: Record = {}
        self._began = self._written = time.monotonic()
        self._spent = 0.0
        self._last = -1
        self._finished = False
        self._rows = hashlib.sha256()
        self._claim: Claim | None = None
        self._writing = threading.RLock()  # for the record in memory, which the heartbeat's thread writes too

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run against other processes and keep its heartbeat while the context is open."""

        def live() -> None:
            if self._record.get("status") == "running":
                with suppress(OSError, RunLocked):  # the run itself reports a full disk, and a lost lock
                    self.beat()

        try:
            with run_lock(self.path) as self._claim, repeatedly(live, self.heartbeat_s):
                yield
        finally:
            self._claim = None

    def check_claim(self) -> None:
        """Refuse to write to a folder that another process has taken over.

        Raises:
            RunLocked: one has.
        """
        if self._claim is not None:
            self._claim.check()

    @property
    def opened(self) -> bool:
        """Whether the run's record has been opened by ``open``."""
        return bool(self._record)

    @property
    def of_edited_code(self) -> bool:
        """Whether the code of the method has changed since the run began."""
        return len(self._record["environment"]["revisions"]) > 1

    def forget(self) -> None:
        """Remove the folder of a run that never started, i.e. one with nothing but its lock."""
        with suppress(OSError):
            if {file.name for file in self.path.iterdir()} <= {LOCK}:
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    @property
    def rows_digest(self) -> str:
        """SHA-256 of the rows written so far, stored in checkpoints to recognise them."""
        return self._rows.hexdigest()

    @property
    def origin(self) -> dict[str, Any]:
        """Return a checkpoint's information about its origin."""
        return {key: self._record[key] for key in ("run_id", "partition_hash", "code_version")}

    def open(self, run: Run, facts: Mapping[str, Any] | None = None) -> None:
        """Start the record, or continue that of an interrupted run (call ``rewind`` next).

        Args:
            run: the run.
            facts: ``partition_hash`` (str), ``data_sha256`` ({file: digest}) and ``labelled_histogram`` (int
                ``[clients, classes]``); further keys are recorded unchanged. ``None``: not known yet.

        Raises:
            RunError: the folder belongs to another run, or the interrupted run had different defaults, a different
                partition or different data.
        """
        config = run.config
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(".*.tmp"):  # left by a killed write
            left.unlink(missing_ok=True)
        before = self.record() if (self.path / "record.json").exists() else None
        facts = finite(dict(facts or {}))
        if before is not None:
            self._check_resume(before, run, facts)
        now, code = _now(), code_version()
        codes, revised = (code_versions(before), revisions(before)) if before else ([], [])
        timing: dict[str, Any] = before["timing"] if before else {"started": now, "seconds": 0.0}
        data_args = config.data.init_args
        self._spent, self._began = float(timing["seconds"]), time.monotonic()
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
                "revisions": list(dict.fromkeys([*revised, revision(run)])),
                "code_versions": list(dict.fromkeys([*codes, code])),
            },
        }
        if before is not None:
            if not facts:  # not known yet, nor is what a run records beside them; and it has not run here
                self._record = before | self._record | {"environment": before["environment"]}
            self._keep(config.rounds)
        write_atomic(self.path / "config.yaml", dump_yaml(identity(config)))
        if patch := uncommitted() if code.endswith("-dirty") else "":
            write_atomic(self.path / f"uncommitted-{hashlib.sha256(patch.encode()).hexdigest()[:12]}.patch", patch)
        self._write()

    def append(self, row: Mapping[str, Any]) -> None:
        """Append an evaluated round; it is on disk on return.

        Args:
            row: ``round`` (int), metrics and other means (floats), counts (ints), ``timing`` (wall-clock).

        Raises:
            RunError: ``round`` is not after the last one, or the run is no longer this process's.
        """
        if row["round"] <= self._last:
            raise RunError(f"{self.path}: round {row['round']} after {self._last}; rewind before resuming")
        self.check_claim()
        path = self.path / "metrics.jsonl"
        line = line_of(row)
        with named(path), open(path, "a", encoding="utf-8", opener=regular) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._rows.update(line.encode())
        self._last = int(row["round"])
        self._record |= _sent(row)
        self.beat(self._last + 1)

    def rewind(self, next_round: int, rows_digest: str | None = None) -> None:
        """Drop the rows from ``next_round`` on and, if none is left, what is recorded of earlier code.

        Args:
            next_round: the round to continue with.
            rows_digest: digest of the rows before it from the checkpoint; ``None``: unknown.

        Raises:
            RunError: an evaluated round before ``next_round`` has no row, or the rows before it have changed.
        """
        before = [row for row in self.rows() if row["round"] < next_round]
        every, found = self._record["config"]["eval_every"], {row["round"] for row in before}
        if lost := [n for n in range(next_round) if (n + 1) % every == 0 and n not in found]:
            raise RunError(
                f"{self.path}: the run was at round {next_round}, but metrics.jsonl has no row of round {lost[0]}; "
                "restore the file, or delete the folder to start over"
            )
        if rows_digest is not None and digest_of(before) != rows_digest:
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: the rows before round {next_round} differ from those written when the "
                "checkpoint was saved; restore the file, or delete the folder to start over"
            )
        self._keep(next_round)
        if next_round == 0:
            recorded = self._record["environment"]
            recorded["code_versions"] = [self._record["code_version"]]
            recorded["revisions"] = recorded["revisions"][-1:]

    def _keep(self, next_round: int) -> None:
        """Remove rows from ``next_round`` on, and a last line torn by a kill."""
        kept = [row for row in self.rows() if row["round"] < next_round]
        lines = "".join(map(line_of, kept))
        self.check_claim()
        write_atomic(self.path / "metrics.jsonl", lines)
        self._rows = hashlib.sha256(lines.encode())
        self._last = kept[-1]["round"] if kept else -1
        self._record |= _sent(kept[-1] if kept else {})

    def rows(self) -> list[Row]:
        """Return the rounds evaluated so far.

        Raises:
            RunError: a line other than the last is damaged.
        """
        return read_rows(self.path)

    def record(self) -> Record:
        """Read and validate the record on disk."""
        return read_record(self.path)

    def beat(self, rounds_done: int | None = None) -> None:
        """Record a heartbeat (``timing.updated``), at most every ``heartbeat_s`` seconds."""
        if rounds_done is not None:
            self._record["rounds"]["done"] = rounds_done
        if time.monotonic() - self._written >= self.heartbeat_s:
            self._write()

    def saved(self, rounds: int) -> None:
        """Record the number of rounds in the checkpoint, from which the run would continue."""
        with self._writing:
            self._record["timing"]["saved_rounds"] = rounds
            self._write()

    def finish(
        self, averaged: Mapping[str, Any] | None = None, confusion: Sequence[Sequence[int]] | None = None
    ) -> Record:
        """Compute the readings from the rows, write the complete record and return it.

        The digest also covers values that are in no row:

        Args:
            averaged: the reading of the averaged model.
            confusion: confusion matrix of the last round's model, test images by true class (rows) and predicted class;
                a row is recorded as one text, as in ``class_counts``.

        Raises:
            RunError: the last round has not been evaluated, or the rows are not those that the run wrote.
        """
        rows, total = self.rows(), self._record["rounds"]["total"]
        if digest_of(rows) != self.rows_digest:
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: the rows are not those that the run wrote; restore the file, or "
                "delete the folder to start over"
            )
        if not rows or rows[-1]["round"] != total - 1:
            raise RunError(f"{self.path}: the last of {total} rounds has no row, so the run is not finished")
        with self._writing:
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
            self._finished = True
        return self._record

    def fail(self, error: BaseException, run: Run | None = None) -> None:
        """Store the traceback in the record; ``run`` opens the record if the failure came first.

        A record that ``finish`` has written stays complete, since nothing of the run is missing.
        If nothing can be written (full disk, read-only folder), the record stays unchanged: the caller has a more
        important error to report.
        """
        if self._finished:
            return
        if not self._record and run is not None:
            with suppress(RunError, OSError):  # if it cannot be opened, it keeps its record
                self.open(run)
        if self._record:
            self._record["error"] = "".join(traceback.format_exception(error))
            self._record["status"] = "failed"
            self._record["rounds"]["done"] = max(self._record["rounds"]["done"], self._last + 1)
            with suppress(OSError, RunLocked):
                self._write()

    def _write(self) -> None:
        with self._writing:
            self.check_claim()
            self._written = time.monotonic()
            timing = self._record["timing"]
            timing["updated"] = _now()
            timing["seconds"] = round(self._spent + self._written - self._began, 3)
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
                    "restore the old data, or delete the folder to start over"
                )


def discard(folders: Iterable[Path]) -> None:
    """Delete the files of runs, so that they start over; none if a process is working on one of them.

    Missing folders are left out. Whatever has been deleted when this is interrupted, every run can start over: what it
    would continue from goes first, then its record.

    Raises:
        RunLocked: a process is working on one of them, or has just begun to.
    """
    there = [path for path in dict.fromkeys(folders) if path.is_dir()]
    for path in there:  # one lock at a time: a process may have too few open files for all of them
        with run_lock(path):
            pass
    order = {name: number for number, name in enumerate((*CHECKPOINTS, "record.json"))}
    for path in there:
        with run_lock(path):
            for left in sorted(path.iterdir(), key=lambda one: order.get(one.name, len(order))):
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _sent(row: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes up to and including a row."""
    return {key: row.get(key, 0) for key in ("bytes_up", "bytes_down")}


def _runtime(run: Run) -> dict[str, Any]:
    """How the run was executed, without local folders and accounts, since records are shared."""
    return {k: v for k, v in asdict(run.config.runtime).items() if not (k.endswith("_dir") or k.startswith("wandb_"))}


def digest_of(rows: Sequence[Row]) -> str:
    """``RunFolder.rows_digest`` for rows read from disk."""
    return hashlib.sha256("".join(map(line_of, rows)).encode()).hexdigest()


def line_of(row: Mapping[str, Any]) -> str:
    """A row as a line of ``metrics.jsonl``."""
    return json.dumps(finite(dict(row)), allow_nan=False) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
