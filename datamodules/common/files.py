"""Files that appear whole or not at all, and errors of the disk that say which file they are about."""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datamodules.common.errors import DataError

LEFT_S = 3600.0  # a temporary file of this age belongs to nobody any more


def write_atomic(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader, or a kill, sees the old or the new file whole.

    Raises:
        OSError: it cannot be written; names the file. What was there is as it was, and no half file stays.
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
    """A hidden file beside ``path`` that no other writer has: process ids repeat from container to container."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def sweep(path: Path) -> None:
    """Remove what writers of ``path`` that were killed have left beside it."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+(-[0-9a-f]+)?(\.tmp)?")
    with suppress(OSError):
        for left in path.parent.glob(".*"):
            if ours.fullmatch(left.name) and time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold off other processes that want to make ``path``; whoever gets in looks first whether it is there by now.

    On a file system without locks nobody is held off: at worst several make the same file.

    Raises:
        DataError: nothing can be written beside ``path``.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = lock.open("w")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}. Make room or take another data_dir") from error
    with handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of the disk name ``path``, as those of a full disk do not by themselves."""
    try:
        yield
    except OSError as error:
        error.filename = str(path) if error.filename is None and error.errno is not None else error.filename
        raise


__all__ = ["alone", "named", "sweep", "temporary_name", "write_atomic"]
