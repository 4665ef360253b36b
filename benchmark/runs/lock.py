"""One process per folder, mostly of a run: a lock that the kernel releases when its holder dies.

Hosts that do not see each other's locks go by the heartbeat of the holder, whose name is in the lock's file.
"""

import fcntl
import json
import os
import secrets
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import EACCES, EAGAIN, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from benchmark.files import read_text, regular
from datamodules.common.errors import RunError
from datamodules.common.files import named

NAME = "run.lock"
PATIENCE_S = 0.2  # for ``locked``, which holds the lock for an instant
NO_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)
FRESH_S = 120.0  # time after its last heartbeat during which a run on another host counts as alive


class RunLocked(RunError):
    """Another process is working on the run."""


class Claim:
    """What a process that holds a folder has written into the lock's file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "claim": secrets.token_hex(8)})
        self._write(self.text)

    def check(self) -> None:
        """Refuse to write any more if another process has taken the folder over.

        Where hosts do not see each other's locks, that is the case after a sleep of more than ``FRESH_S``.

        Raises:
            RunLocked: it is no longer this process's.
        """
        with suppress(FileNotFoundError):
            if read_text(self.folder / NAME) != self.text:
                raise RunLocked(
                    f"{self.folder}: another process has taken this run over, since this one had not written for "
                    f"{FRESH_S:.0f} s; nothing more is written here"
                )

    def release(self) -> None:
        """Leave the lock's file without a holder, unless it has another one."""
        with suppress(RunLocked, OSError):
            self.check()
            self._write("")

    def _write(self, text: str) -> None:
        path = self.folder / NAME
        with named(path), open(path, "w", encoding="utf-8", opener=regular) as file:
            file.write(text)


@contextmanager
def run_lock(folder: Path) -> Iterator[Claim]:
    """Lock ``folder`` for this process; a lock left by a dead process is taken over.

    Raises:
        RunLocked: another live process holds it, here or on another host; the message names its pid and host.
        RunError: the folder is not writable.
        OSError: the disk is full; names the file.
    """
    path = folder / NAME
    lock = FileLock(path, PATIENCE_S, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise _locked_by(holder(folder), folder) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RunError(
                f"{path}: cannot be written ({error.strerror}); make the folder writable, remove what blocks it, or "
                "give another --results_dir"
            ) from None
        warnings.warn(f"this file system has no locks ({error}); do not start a run twice", stacklevel=3)
    try:
        if alive_elsewhere(folder):
            raise _locked_by(holder(folder), folder)
        claim = Claim(folder)
        try:
            yield claim
        finally:
            claim.release()
    finally:
        lock.release()


def locked(folder: Path) -> bool:
    """Whether a live process (visible from this host) holds the folder."""
    try:
        handle = regular(folder / NAME, os.O_RDONLY)
    except OSError:  # missing or not readable
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two simultaneous checks do not see each other
    except OSError as error:
        return error.errno in (EAGAIN, EACCES)
    finally:
        os.close(handle)
    return False


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
