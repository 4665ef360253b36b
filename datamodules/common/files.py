"""Atomic writes, files made once, and disk errors that name the file."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from datamodules.common.errors import DataError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that takes the place of ``path`` at the end: readers see the old or the new one.

    Raises:
        OSError: it cannot be written; names the file. The old file is unchanged, and no partial file remains.
    """
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"  # process ids may repeat between containers
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        with named(path):
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_atomic(path: Path, text: str) -> None:
    """Replace the content of ``path`` by ``text`` in UTF-8; see ``replacing``."""
    with replacing(path) as file:
        file.write(text.encode())


def write_changed(texts: Mapping[Path, str]) -> list[Path]:
    """Write the files whose text has changed, and return them."""
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, texts[path])
    return changed


def made_once(path: Path, make: Callable[[], object]) -> None:
    """Call ``make`` if ``path`` does not exist; other processes wait, and find it. A hidden file stays as their lock.

    Raises:
        DataError: the folder of ``path`` is not writable.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(path.with_name(f".{path.name}.lock")).acquire()
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}. Free some space or choose another data_dir") from error
    with held:
        if not path.exists():
            make()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add ``path`` to disk errors that do not name a file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
