"""Atomic writes, and disk errors that name the file."""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datamodules.common.errors import DataError

LEFT_S = 3600.0  # temporary files older than this are abandoned


def write_atomic(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically: readers, also after a kill, see the old or the new file.

    Raises:
        OSError: it cannot be written; names the file. The old file is unchanged, and no partial file remains.
    """
    sweep(path)
    temporary = temporary_name(path)
    try:
        with named(path):
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def temporary_name(path: Path) -> Path:
    """Return a unique hidden name beside ``path``; process ids may repeat between containers."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def sweep(path: Path) -> None:
    """Remove temporary files left beside ``path`` by killed writers."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+(-[0-9a-f]+)?(\.tmp)?")
    with suppress(OSError):
        for left in path.parent.glob(".*"):
            if ours.fullmatch(left.name) and time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock ``path`` while creating it; check first whether another process has created it meanwhile.

    On a file system without locks there is no waiting: at worst several processes create the same file.

    Raises:
        DataError: the folder of ``path`` is not writable.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = lock.open("w")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}. Free some space or choose another data_dir") from error
    with handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add ``path`` to disk errors that do not name a file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = str(path) if error.filename is None and error.errno is not None else error.filename
        raise
