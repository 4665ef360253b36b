"""A run's files, from start to end or failure, including resumption after a kill."""

import hashlib
import json
import os
import re
import shutil
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmark.config import Run, identity
from benchmark.runs import records
from benchmark.runs.code_identity import code_version, revision, uncommitted
from benchmark.runs.environment import environment
from benchmark.runs.lock import LOCK, Claim, run_lock
from benchmark.runs.records import AVERAGED, FACTS, READINGS, Record, Row, finite
from benchmark.runs.states import CHECKPOINTS
from datamodules.common.errors import RunError
from datamodules.common.files import named, write_atomic
from datamodules.common.yaml import dump_yaml

CODE = code_version()
CHANGES = uncommitted() if CODE.endswith("-dirty") else {}
"""The code of this process as it was imported: what is edited or committed later is that of the next command."""
OUTER_FOLDERS = re.compile(r'(?<=  File ").*[/\\](?=[^/\\"]+[/\\][^/\\"]+")')  # of a traceback's files


class RunFolder:
    """One run on disk. ``record`` is what its record says; empty before ``open``.

    Args:
        path: its folder; created by ``lock`` or ``open``.
        heartbeat_s: least number of seconds from one update of ``record.json`` to the next by ``beat``.
    """

    def __init__(self, path: str | Path, heartbeat_s: float = 5.0) -> None:
        self.path, self.heartbeat_s = Path(path), heartbeat_s
        self.record: Record = {}
        self._began = self._written = time.monotonic()
        self._spent = 0.0
        self._finished = False
        self._rows = hashlib.sha256()
        self._claim: Claim | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run against other processes while the context is open; a run that has not begun leaves no folder."""
        with run_lock(self.path) as self._claim:
            try:
                yield
            finally:
                self._claim = None
                with suppress(OSError):
                    if [file.name for file in self.path.iterdir()] == [LOCK]:
                        (self.path / LOCK).unlink()
                        self.path.rmdir()

    def check_claim(self) -> None:
        """Refuse to write to a folder that another process has taken over.

        Raises:
            RunLocked: one has.
        """
        if self._claim is not None:
            self._claim.check()

    @property
    def rows_digest(self) -> str:
        """SHA-256 of the rows written so far, stored in checkpoints to recognise them."""
        return self._rows.hexdigest()

    @property
    def origin(self) -> dict[str, Any]:
        """Return a checkpoint's information about its origin."""
        return {key: self.record[key] for key in ("run_id", "partition_hash", "code_version")}

    def open(self, run: Run, facts: Mapping[str, Any]) -> None:
        """Start the record, or continue that of an interrupted run (call ``rewind`` next).

        Args:
            run: the run.
            facts: ``partition_hash`` (str), ``data_sha256`` ({file: digest}) and ``labelled_histogram`` (int
                ``[clients with labels, classes]``); further keys are recorded unchanged. Those that are missing are not
                known yet.

        Raises:
            RunError: the interrupted run had a different partition or different data, or its record is damaged.
        """
        config, facts = run.config, finite(facts)
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(".*.tmp"):  # left by a killed write
            left.unlink(missing_ok=True)
        if earlier := self._earlier_record():
            self._check_data(earlier, facts)
        self.record = {
            "schema_version": records.SCHEMA_VERSION,
            "run_id": run.id,
            "status": "running",
            "method": config.method.name,
            "dataset": config.data.name,
            "scale": config.scale,
            "config": identity(config),
            "seeds": {"run": config.seed, "partition": config.data.init_args.get("partition_seed")},
            **{key: earlier.get(key) for key in FACTS},
            **facts,
            "code_version": CODE,
            "rounds": {"done": 0, "total": config.rounds},
            **dict.fromkeys(READINGS),
            **({AVERAGED: None} if config.average_last else {}),
            "bytes_up": 0,
            "bytes_down": 0,
            "error": None,
            "timing": earlier["timing"] if earlier else {"started": _now(), "seconds": 0.0},
            "environment": {
                **environment(),
                # Local folders are left out, since records are shared.
                **{name: value for name, value in asdict(config.runtime).items() if not name.endswith("_dir")},
                "precision": config.precision,
                "revisions": _including(records.revisions(earlier) if earlier else [], revision(run)),
                "code_versions": _including(records.code_versions(earlier) if earlier else [], CODE),
            },
        }
        write_atomic(self.path / "config.yaml", dump_yaml(identity(config)))
        for name, patch in CHANGES.items():
            write_atomic(self.path / name, patch)
        self._write()

    def _earlier_record(self) -> Record:
        """The record of an earlier start, whose time counts; empty if there is none."""
        if not (self.path / "record.json").exists():
            return {}
        earlier = records.read_record(self.path)
        self._spent = float(earlier["timing"]["seconds"])
        return earlier

    def _check_data(self, earlier: Record, facts: Mapping[str, Any]) -> None:
        if not records.read_rows(self.path) and not any((self.path / name).exists() for name in CHECKPOINTS):
            return
        for key in ("partition_hash", "data_sha256"):
            if key in facts and earlier[key] is not None and earlier[key] != facts[key]:
                raise RunError(
                    f"{self.path}: cannot resume, {key} was {earlier[key]} and is now {facts[key]}; "
                    "restore the old data, or delete the folder to start over"
                )

    def append(self, row: Mapping[str, Any]) -> None:
        """Append an evaluated round; it is on disk on return.

        Args:
            row: ``round`` (int), metrics and other means (floats), counts (ints), ``timing`` (wall-clock).

        Raises:
            RunLocked: the run is no longer this process's.
        """
        self.check_claim()
        path = self.path / "metrics.jsonl"
        line = line_of(row)
        with named(path), open(path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._rows.update(line.encode())
        self.beat(int(row["round"]) + 1)

    def rewind(self, next_round: int, rows_digest: str | None = None) -> None:
        """Drop the rows from ``next_round`` on and, if that is 0, what is recorded of earlier code.

        Args:
            next_round: the round to continue with.
            rows_digest: digest of the rows before it from the checkpoint; ``None``: unknown.

        Raises:
            RunError: an evaluated round before ``next_round`` has no row, or the rows before it have changed.
        """
        kept = [row for row in records.read_rows(self.path) if row["round"] < next_round]
        every = self.record["config"]["eval_every"]
        if lost := sorted({*range(every - 1, next_round, every)} - {row["round"] for row in kept}):
            raise RunError(
                f"{self.path}: the run was at round {next_round}, but metrics.jsonl has no row of round {lost[0]}; "
                "restore the file, or delete the folder to start over"
            )
        if rows_digest is not None and digest_of(kept) != rows_digest:
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: the rows before round {next_round} differ from those written when the "
                "checkpoint was saved; restore the file, or delete the folder to start over"
            )
        lines = "".join(map(line_of, kept))
        self.check_claim()
        write_atomic(self.path / "metrics.jsonl", lines)
        self._rows = hashlib.sha256(lines.encode())
        self.record["rounds"]["done"] = next_round
        if next_round == 0:
            recorded = self.record["environment"]
            recorded["code_versions"] = [self.record["code_version"]]
            recorded["revisions"] = recorded["revisions"][-1:]
            for patch in self.path.glob("uncommitted-*.patch"):
                if patch.name not in CHANGES:
                    patch.unlink()

    def beat(self, rounds_done: int) -> None:
        """Record how many rounds are done, at most every ``heartbeat_s`` seconds."""
        self.record["rounds"]["done"] = rounds_done
        if time.monotonic() - self._written >= self.heartbeat_s:
            self._write()

    def saved(self, rounds: int) -> None:
        """Record the number of rounds in the checkpoint, from which the run would continue."""
        self.record["timing"]["saved_rounds"] = rounds
        self._write()

    def finish(self, averaged: Mapping[str, Any] | None = None, confusion: Sequence[list[int]] | None = None) -> None:
        """Compute the readings from the rows and write the complete record.

        The digest also covers values that are in no row:

        Args:
            averaged: the reading of the averaged model.
            confusion: confusion matrix of the last round's model, test images by true class (rows) and predicted class;
                a row is recorded as one text, as in ``class_counts``.

        Raises:
            RunError: the rows are not those that the run wrote, or one that it needs is missing.
        """
        rows, record = records.read_rows(self.path), self.record
        if digest_of(rows) != self.rows_digest:
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: the rows are not those that the run wrote; restore the file, or "
                "delete the folder to start over"
            )
        record |= records.readings(rows, record["config"]["last_k"])
        if averaged:
            record[AVERAGED] = finite(averaged)
        if confusion:
            record["confusion"] = [" ".join(map(str, line)) for line in confusion]
        record |= {key: rows[-1].get(key, 0) for key in ("bytes_up", "bytes_down", "skipped")}
        record["rounds"]["done"] = record["rounds"]["total"]
        record["status"] = "complete"
        record["timing"].pop("saved_rounds", None)
        record["digest"] = records.digest(record, rows)
        self._write()
        self._finished = True

    def fail(self, error: BaseException, run: Run) -> None:
        """Store the traceback in the record; ``run`` opens the record if the failure came first.

        Of its files only the innermost folder is told, because records are shared. The message is kept as it is.

        A record that ``finish`` has written stays complete, since nothing of the run is missing.
        If nothing can be written (full disk, read-only folder), the record stays unchanged: the caller has a more
        important error to report.
        """
        if self._finished:
            return
        with suppress(OSError, RunError):
            self.record = self.record or self._earlier_record()
            if not self.record:
                self.open(run, {})
            text = OUTER_FOLDERS.sub("", "".join(traceback.format_exception(error)))
            self.record |= {"status": "failed", "error": text.encode(errors="backslashreplace").decode()}
            self._write()

    def _write(self) -> None:
        self.check_claim()
        self._written = time.monotonic()
        seconds = round(self._spent + self._written - self._began, 3)
        self.record["timing"] |= {"updated": _now(), "seconds": seconds}
        records.validate(self.record, str(self.path))
        write_atomic(self.path / "record.json", json.dumps(self.record, indent=1, allow_nan=False) + "\n")


def discard(folders: Iterable[Path]) -> None:
    """Delete the files of runs, so that they start over; none if a process is working on one of them.

    Missing folders are left out. Whatever has been deleted when this is interrupted, every run can start over: what it
    would continue from goes first, then its record.

    Raises:
        RunLocked: a process is working on one of them, or has just begun to.
    """
    existing = [path for path in dict.fromkeys(folders) if path.is_dir()]
    for path in existing:  # one lock at a time: a process may have too few open files for all of them
        with run_lock(path):
            pass
    for path in existing:
        with run_lock(path):
            for name in (*CHECKPOINTS, "record.json"):
                (path / name).unlink(missing_ok=True)
            for left in path.iterdir():
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                elif left.name != LOCK:
                    left.unlink()


def digest_of(rows: Sequence[Row]) -> str:
    """``RunFolder.rows_digest`` for rows read from disk."""
    return hashlib.sha256("".join(map(line_of, rows)).encode()).hexdigest()


def line_of(row: Mapping[str, Any]) -> str:
    """A row as a line of ``metrics.jsonl``."""
    return json.dumps(finite(dict(row)), allow_nan=False) + "\n"


def _including(names: Sequence[str], current: str) -> list[str]:
    return list(dict.fromkeys([*names, current]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
