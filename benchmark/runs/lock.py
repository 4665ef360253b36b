"""One process per folder, mostly of a run: a lock that the kernel releases when its holder dies.

The file system has to have locks, and those of several hosts have to see each other's.
"""

import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EAGAIN, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from filelock import FileLock, Timeout

from benchmark.files import read_text, regular
from datamodules.common.errors import RunError
from datamodules.common.files import named

NAME = "run.lock"
PATIENCE_S = 0.2  # for ``locked``, which holds the lock for an instant
NO_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)


class RunLocked(RunError):
    """Another process is working on the run."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this process; a lock left by a dead process is taken over.

    Raises:
        RunLocked: another live process holds it; the message names its pid and host.
        RunError: the folder is not writable.
        OSError: the disk is full; names the file.
    """
    path = folder / NAME
    lock = FileLock(path, PATIENCE_S, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunLocked(f"{folder}: {read_text(path)} is working on this run; wait for it or stop it") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RunError(
                f"{path}: cannot be written ({error.strerror}); make the folder writable, remove what blocks it, or "
                "give another --results_dir"
            ) from None
        warnings.warn(f"this file system has no locks ({error}); do not start a run twice", stacklevel=3)
    try:
        with named(path), open(path, "w", encoding="utf-8", opener=regular) as file:
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def locked(folder: Path) -> bool:
    """Whether a live process holds the folder."""
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
