"""State of a run on disk, seen from outside: missing, running, stale, failed, complete or damaged."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmark.config import Run, differences
from benchmark.runs.lock import alive_elsewhere, locked
from benchmark.runs.records import Record, read_record
from datamodules.common.errors import BenchError, RunError

Digests = dict[str, Mapping[str, str]]
"""SHA-256 of files by name, of each file or data set that was looked at."""

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
    """Return a run's state and, if it is complete, its record."""
    busy = locked(path) or alive_elsewhere(path)  # asked first: the record of a run that ends meanwhile is its last
    try:
        record = read_record(path) if (path / "record.json").exists() else None
    except RunError:
        return RunState("damaged")
    status = record["status"] if record else "missing"
    if status == "complete":
        return RunState(status, record)
    if busy:
        return RunState("running")
    return RunState("stale" if status == "running" else status)


def state_of(run: Run, digests: Digests | None = None) -> RunState:
    """Like ``look``, but a complete run of other defaults or other data than there are now is ``outdated``.

    Args:
        run: the run.
        digests: see ``other_data``.
    """
    on_disk = look(run.folder)
    if on_disk.record is None:
        return on_disk
    outdated = differences(on_disk.record["config"], run.config) or other_data(run, on_disk.record, digests)
    return RunState("outdated") if outdated else on_disk


def other_data(run: Run, record: Record, digests: Digests | None = None) -> str:
    """Name a file or folder of a run's data that is not the one of its record; empty if there is none.

    Compared are what the options name (``FSSLDataModule.digests``) and the decoded data set in the data directory.
    What is not here differs from nothing.

    Args:
        run: what is asked for.
        record: what it was.
        digests: those read for other runs, to which this adds, so that many runs read a data set once.
    """
    config = run.config
    digests = {} if digests is None else digests
    recorded: Mapping[str, str] = record["data_sha256"] or {}
    decoded = [name for name in recorded if name.removesuffix(".npz").partition("-")[0] == config.data.name]
    current: dict[str, str] = {}
    for name in decoded:
        current |= _digest(Path(config.runtime.data_dir, name), digests)
    current |= _named_digests(run, digests)
    if partition_file := config.data.init_args.get("partition_file"):
        current |= _digest(Path(partition_file), digests)
    return next((name for name, digest in current.items() if recorded.get(name, digest) != digest), "")


def _digest(file: Path, digests: Digests) -> Mapping[str, str]:
    """The digest of a file, by its name; empty if it is not here."""
    if str(file) not in digests:
        digests[str(file)] = {}
        with suppress(OSError), file.open("rb") as stream:
            digests[str(file)] = {file.name: hashlib.file_digest(stream, "sha256").hexdigest()}
    return digests[str(file)]


def _named_digests(run: Run, digests: Digests) -> Mapping[str, str]:
    """The digests of the files that the options name; empty if they are not here."""
    data, folder = run.config.data, run.config.runtime.data_dir
    with suppress(BenchError, OSError):
        parameters = inspect.signature(run.class_of("data")).parameters  # not those of how it is split
        options = {name: value for name, value in data.init_args.items() if name in parameters}
        key = json.dumps([data.class_path, folder, options], default=str)
        if key not in digests:
            digests[key] = {}
            digests[key] = run.make_data().digests()
        return digests[key]
    return {}


def saved_rounds(path: Path) -> int:
    """Rounds in an unfinished run's checkpoint, as its record says; 0 without one, or where nothing can be read."""
    with suppress(RunError):  # the run itself reports problems with its record
        return int(read_record(path)["timing"].get("saved_rounds", 0))
    return 0
