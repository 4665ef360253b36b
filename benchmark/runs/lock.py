"""One process per run folder: a lock that the kernel releases when its holder dies, however it dies."""

import fcntl
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any

from benchmark.files import read_text, regular
from datamodules.common.errors import RunError

NAME = "run.lock"
TRIES, PAUSE_S = 20, 0.01  # one who only looks (``locked``) is in the way for an instant
FRESH_S = 120.0  # a run on a machine whose locks we cannot see counts as alive for so long after a sign of life


class RunLocked(RunError):
    """Another process works on the run."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process; a lock left behind by a dead process is taken over.

    Raises:
        RunLocked: another living process holds it, here or on another machine; the message names its pid and host.
        RunError: the folder cannot be written.
    """
    handle = _acquired(folder)
    if handle is None:
        raise _locked_by(holder(folder), folder)
    try:
        if alive_elsewhere(folder):
            raise _locked_by(holder(folder), folder)
        me = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        os.ftruncate(handle, 0)
        os.pwrite(handle, me.encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def locked(folder: Path) -> bool:
    """Whether a living process (that this machine can see) holds the folder."""
    try:
        handle = regular(folder / NAME, os.O_RDONLY)
    except OSError:  # there is none, or none that we may look at
        return False
    try:
        return not _try(handle, fcntl.LOCK_SH)  # shared: two who look at once do not see each other
    finally:
        os.close(handle)


def holder(folder: Path) -> dict[str, Any]:
    """``pid`` and ``host`` of the last holder; empty after an orderly release."""
    try:
        return dict(json.loads(read_text(folder / NAME)))
    except (OSError, ValueError):
        return {}


def alive_elsewhere(folder: Path) -> bool:
    """Whether the last holder is on another machine, whose locks may not reach us, and has shown life lately.

    It took the lock, or wrote into the record of its run. A time in the future counts as little as one long ago: its
    clock is wrong, or ours.
    """
    here = socket.gethostname()
    if holder(folder).get("host", here) == here:
        return False
    times = []
    with suppress(OSError):
        times.append((folder / NAME).stat().st_mtime)
    with suppress(OSError, ValueError, KeyError, TypeError):  # no record, or none that can be read
        record = json.loads(read_text(folder / "record.json"))
        if record["status"] == "running":
            times.append(datetime.fromisoformat(record["timing"]["updated"]).timestamp())
    return any(abs(time.time() - one) < FRESH_S for one in times)


def _locked_by(owner: dict[str, Any], folder: Path) -> RunLocked:
    return RunLocked(
        f"{folder}: process {owner.get('pid', '?')} on {owner.get('host', '?')} is working on this "
        f"run; wait for it or stop it (once it is dead, other machines wait {FRESH_S:.0f} s to be sure)"
    )


def _acquired(folder: Path) -> int | None:
    """The open lock file of a folder, which this process holds now; ``None`` if another one does."""
    for _ in range(TRIES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = regular(folder / NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RunError(
                f"{folder / NAME}: a run cannot write there ({error.strerror}); make the folder writable, remove what "
                "is in the way, or give another --results_dir"
            ) from None
        if _try(handle, fcntl.LOCK_EX) and _is_there(handle, folder / NAME):
            return handle
        os.close(handle)
        time.sleep(PAUSE_S)
    return None


def _is_there(handle: int, path: Path) -> bool:
    """Whether the open file is the one of this name: its last holder may have removed it, and others made another."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (EAGAIN, EACCES):
            return False
        warnings.warn(f"this file system has no locks ({error}); do not start a run twice", stacklevel=3)
    return True
