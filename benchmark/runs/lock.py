"""One process per folder, mostly of a run: locks that the kernel releases when their holder dies."""

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
from datamodules.common.files import named

NAME = "run.lock"
TRIES, PAUSE_S = 20, 0.01  # retries, since ``locked`` holds the lock for an instant
FRESH_S = 120.0  # time after its last heartbeat during which a run on another host counts as alive


class RunLocked(RunError):
    """Another process is working on the run."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this process; a lock left by a dead process is taken over.

    Raises:
        RunLocked: another live process holds it, here or on another host; the message names its pid and host.
        RunError: the folder is not writable.
        OSError: the disk is full; names the file.
    """
    handle = _acquired(folder)
    if handle is None:
        raise _locked_by(holder(folder), folder)
    try:
        if alive_elsewhere(folder):
            raise _locked_by(holder(folder), folder)
        me = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with named(folder / NAME):
            os.ftruncate(handle, 0)
            os.pwrite(handle, me.encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


@contextmanager
def one_after_another(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this context with the folder, which exists; leaves no file behind.

    Nobody waits where the file system has no locks for folders.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def locked(folder: Path) -> bool:
    """Whether a live process (visible from this host) holds the folder."""
    try:
        handle = regular(folder / NAME, os.O_RDONLY)
    except OSError:  # missing or not readable
        return False
    try:
        return not _try(handle, fcntl.LOCK_SH)  # shared, so that two simultaneous checks do not see each other
    finally:
        os.close(handle)


def holder(folder: Path) -> dict[str, Any]:
    """Return ``pid`` and ``host`` of the last holder; empty after a clean release."""
    try:
        found = json.loads(read_text(folder / NAME))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def alive_elsewhere(folder: Path) -> bool:
    """Whether the last holder is on a host whose locks we cannot see, with a recent heartbeat.

    A heartbeat is taking the lock, or writing the record of the run. Times in the future do not count: one of the
    clocks is wrong.
    """
    here = socket.gethostname()
    if holder(folder).get("host", here) == here:
        return False
    times = []
    with suppress(OSError):
        times.append((folder / NAME).stat().st_mtime)
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or unreadable record
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
    """Acquire a folder's lock and return the open lock file; ``None`` if another process holds it."""
    for _ in range(TRIES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = regular(folder / NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RunError(
                f"{folder / NAME}: cannot be written ({error.strerror}); make the folder writable, remove what "
                "blocks it, or give another --results_dir"
            ) from None
        if _try(handle, fcntl.LOCK_EX) and _is_there(handle, folder / NAME):
            return handle
        os.close(handle)
        time.sleep(PAUSE_S)
    return None


def _is_there(handle: int, path: Path) -> bool:
    """Whether the open file is still the one at ``path``, and not one removed and recreated meanwhile."""
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
