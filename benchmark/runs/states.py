"""State of a run on disk, seen from outside: missing, running, stale, failed, complete or damaged."""

from pathlib import Path
from typing import NamedTuple

from benchmark.config import Run, differences
from benchmark.runs.lock import alive_elsewhere, locked
from benchmark.runs.records import Record, read_record
from datamodules.common.errors import RunError

CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = (CHECKPOINT, f"{CHECKPOINT}.previous")  # files to resume from


def state(path: Path) -> str:
    """Return a run's state.

    ``missing``, ``running``, ``stale`` (killed, can be resumed), ``failed``, ``complete``, or ``damaged`` (its record
    cannot be read, or is not as its run wrote it).
    """
    return look(path).state


class RunState(NamedTuple):
    """A run's state on disk and, if it is complete, its record."""

    state: str
    record: Record | None = None


def look(path: Path) -> RunState:
    """Return a run's state and, if it is complete, its record, reading it only once."""
    try:
        return _look(path)
    except RunError:
        return RunState("damaged")


def state_of(run: Run) -> RunState:
    """Like ``look``, but a complete run made with other defaults than the current ones is ``outdated``."""
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
    record = read_record(path)  # again: the run may have ended before we checked the lock
    if record["status"] == "running":
        return RunState("stale")
    return RunState(record["status"], record if record["status"] == "complete" else None)


def saved_rounds(path: Path) -> int | None:
    """Return the rounds in an unfinished run's checkpoint; 0 without one, ``None`` if the record does not say."""
    if not any((path / name).exists() for name in CHECKPOINTS):
        return 0
    try:
        known = read_record(path)["timing"].get("saved_rounds")
    except RunError:  # the run itself reports problems with its record
        return None
    return None if known is None else int(known)
