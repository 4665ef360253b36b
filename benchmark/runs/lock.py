"""One process per folder, mostly of a run: a lock that the kernel releases when its holder dies.

Hosts that do not see each other's locks go by the heartbeat of the holder, whose name is in the lock's file: the time
at which the file was last touched.
"""

import fcntl
import json
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from datamodules.common.errors import RunError
from datamodules.common.files import named

LOCK = "run.lock"
PATIENCE_S = 0.2  # for ``locked``, which holds the lock for an instant
NO_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)
FRESH_S = 120.0  # time after its last heartbeat during which a run on another host counts as alive


class RunLocked(RunError):
    """Another process is working on the run."""


class Claim:
    """A folder that this process holds, as its lock's file says.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "claim": secrets.token_hex(8)})
        with named(self.path):
            self.path.write_text(self.text)

    def check(self) -> None:
        """Refuse to write any more if another process has taken the folder over.

        Where hosts do not see each other's locks, that is the case after a sleep of more than ``FRESH_S``.

        Raises:
            RunLocked: it is no longer this process's.
        """
        with suppress(FileNotFoundError):
            if self.path.read_text() != self.text:
                raise RunLocked(
                    f"{self.path.parent}: another process has taken this run over, since this one had not written for "
                    f"{FRESH_S:.0f} s; nothing more is written here"
                )

    def beat(self) -> None:
        """Say that this process is alive, unless it has lost the folder."""
        with suppress(RunLocked, OSError):
            self.check()
            os.utime(self.path)


@contextmanager
def run_lock(folder: Path, heartbeat_s: float = 5.0) -> Iterator[Claim]:
    """Lock ``folder`` for this process, and keep its heartbeat; a lock left by a dead process is taken over.

    Raises:
        RunLocked: another live process holds it, here or on another host; the message names its pid and host.
        RunError: the folder is not writable.
        OSError: the disk is full; names the file.
    """
    path = folder / LOCK
    lock = FileLock(path, PATIENCE_S, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise _locked_by(folder) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RunError(
                f"{path}: cannot be written ({error.strerror}); make the folder writable, remove what blocks it, or "
                "give another --results_dir"
            ) from None
        warnings.warn(f"this file system has no locks ({error}); do not start a run twice", stacklevel=3)
    try:
        if alive_elsewhere(folder):
            raise _locked_by(folder)
        claim = Claim(folder)
        try:
            with repeatedly(claim.beat, heartbeat_s):
                yield claim
        finally:
            with suppress(RunLocked, OSError):
                claim.check()
                path.write_text("")  # nobody's
    finally:
        lock.release()


def locked(folder: Path) -> bool:
    """Whether a live process (visible from this host) holds the folder."""
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two simultaneous checks do not see each other
    except BlockingIOError:
        return True
    except OSError:  # missing or not readable
        return False
    return False


def holder(folder: Path) -> dict[str, Any]:
    """Return ``pid`` and ``host`` of the last holder; empty after a clean release."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / LOCK).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def alive_elsewhere(folder: Path) -> bool:
    """Whether the last holder is on a host whose locks we cannot see, with a recent heartbeat.

    One of more than ``FRESH_S`` in the future does not count: a clock is wrong.
    """
    here = socket.gethostname()
    if holder(folder).get("host", here) == here:
        return False
    with suppress(OSError):
        return abs(time.time() - (folder / LOCK).stat().st_mtime) < FRESH_S
    return False


@contextmanager
def repeatedly(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call ``work`` from a thread every ``every_s`` seconds while the context is open."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(every_s):
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _locked_by(folder: Path) -> RunLocked:
    owner = holder(folder)
    return RunLocked(
        f"{folder}: process {owner.get('pid', '?')} on {owner.get('host', '?')} is working on this "
        f"run; wait for it or stop it (once it is dead, other machines wait {FRESH_S:.0f} s to be sure)"
    )
