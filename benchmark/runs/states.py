"""What is on disk of a run, seen from outside: nothing, one that goes on, one that was killed, a complete record."""

from pathlib import Path
from typing import NamedTuple

from benchmark.config import Run, differences
from benchmark.runs.lock import alive_elsewhere, locked
from benchmark.runs.records import Record, read_record
from datamodules.common.errors import RunError

CHECKPOINTS = ("checkpoint.pt", "checkpoint.pt.previous")  # what a run resumes from


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
