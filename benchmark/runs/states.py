"""State of a run on disk, seen from outside: missing, running, stale, failed, complete or damaged."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmark.config import Run, differences
from benchmark.runs.lock import alive_elsewhere, locked
from benchmark.runs.records import Record, read_record
from datamodules.common.errors import BenchError, RunError

Digests = dict[str, Mapping[str, str]]
"""SHA-256 of files by name, of each data set that was looked at."""

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
    known = (path / "record.json").exists()
    try:
        if known and (record := read_record(path))["status"] == "complete":
            return RunState("complete", record)
        if locked(path) or alive_elsewhere(path):
            return RunState("running")
        if not known:
            return RunState("missing")
        record = read_record(path)  # again: the run may have ended before we checked the lock
    except RunError:
        return RunState("damaged")
    if record["status"] == "running":
        return RunState("stale")
    return RunState(record["status"], record if record["status"] == "complete" else None)


def state_of(run: Run, known: Digests | None = None) -> RunState:
    """Like ``look``, but a complete run of other defaults or other data than there are now is ``outdated``.

    Args:
        run: the run.
        known: see ``other_data``.
    """
    found = look(run.folder)
    if found.record is None:
        return found
    outdated = differences(found.record["config"], run.config) or other_data(run, found.record, known)
    return RunState("outdated") if outdated else found


def other_data(run: Run, record: Record, known: Digests | None = None) -> str:
    """Name a file or folder of a run's data that is not the one of its record; empty if there is none.

    Compared are what the options name (``FSSLDataModule.digests``) and the decoded data set in the data directory.
    What is not here differs from nothing.

    Args:
        run: what is asked for.
        record: what it was.
        known: what this has found of other runs, and finds, so that many runs read a data set once.
    """
    config = run.config
    known = {} if known is None else known
    recorded: Mapping[str, str] = record["data_sha256"] or {}
    decoded = [name for name in recorded if name.removesuffix(".npz").partition("-")[0] == config.data.name]
    found: dict[str, str] = {}
    for name in decoded:
        found |= _digest(Path(config.runtime.data_dir, name), known)
    found |= _named_digests(run, known)
    if split := config.data.init_args.get("partition_file"):
        found |= _digest(Path(split), known)
    return next((name for name, digest in found.items() if recorded.get(name, digest) != digest), "")


def _digest(file: Path, known: Digests) -> Mapping[str, str]:
    """That of a file, by its name; none if it is not here."""
    if str(file) not in known:
        try:
            with file.open("rb") as stream:
                known[str(file)] = {file.name: hashlib.file_digest(stream, "sha256").hexdigest()}
        except OSError:
            known[str(file)] = {}
    return known[str(file)]


def _named_digests(run: Run, known: Digests) -> Mapping[str, str]:
    """Those of the files that the options name; none if they are not here."""
    data, folder = run.config.data, run.config.runtime.data_dir
    try:
        own = inspect.signature(run.class_of("data")).parameters  # not those of how it is split
        key = json.dumps([data.class_path, folder, {k: v for k, v in data.init_args.items() if k in own}], default=str)
        if key not in known:
            known[key] = {}
            known[key] = run.make_data().digests()
    except (BenchError, OSError):
        return {}
    return known[key]


def saved_rounds(path: Path) -> int:
    """Rounds in an unfinished run's checkpoint, as its record says; 0 without one, or where nothing can be read."""
    try:
        return int(read_record(path)["timing"].get("saved_rounds", 0))
    except RunError:  # the run itself reports problems with its record
        return 0
