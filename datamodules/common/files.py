"""Files that appear whole or not at all, and errors of the disk that say which file they are about."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEFT_S = 3600.0  # a temporary file of this age belongs to nobody any more


def write_atomic(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader, or a kill, sees the old or the new file whole.

    Raises:
        OSError: it cannot be written; names the file. What was there is as it was, and no half file stays.
    """
    sweep(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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


def sweep(path: Path) -> None:
    """Remove what writers of ``path`` that were killed have left beside it."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+(\.tmp)?")
    with suppress(OSError):
        for left in path.parent.glob(".*"):
            if ours.fullmatch(left.name) and time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of the disk name ``path``, as those of a full disk do not by themselves."""
    try:
        yield
    except OSError as error:
        error.filename = str(path) if error.filename is None and error.errno is not None else error.filename
        raise


__all__ = ["named", "sweep", "write_atomic"]
