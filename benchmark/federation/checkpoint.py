"""Checkpoints that survive a kill at any moment: temporary name, fsync, rename, checksum, one predecessor."""

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from datamodules.common.errors import RunError

MAGIC = b"fssl-bench checkpoint 1\n"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically to ``path``; what was there stays beside it as ``<name>.previous``.

    Raises:
        OSError: it cannot be written, e.g. to a full disk; what was there is as it was, and no half file takes space.
    """
    body = _dumped(state)
    temporary = _staged(path, MAGIC + hashlib.sha256(body).digest(), body)
    if path.exists():
        os.replace(path, previous(path))
    os.replace(temporary, path)


def save_plain(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically to ``path``, alone and as ``torch.load`` reads it.

    Raises:
        OSError: as ``save``.
    """
    os.replace(_staged(path, _dumped(state)), path)


def load(path: Path) -> dict[str, Any] | None:
    """The newest intact checkpoint of ``path`` and its predecessor, or ``None`` if neither exists.

    A predecessor that has to serve takes the place of the damaged file, which would otherwise become the predecessor.

    Raises:
        RunError: files exist but none is intact.
    """
    found = [p for p in (path, previous(path)) if p.exists()]
    for candidate in found:
        raw = candidate.read_bytes()
        head = len(MAGIC)
        body = raw[head + 32 :]
        if raw[:head] == MAGIC and hashlib.sha256(body).digest() == raw[head : head + 32]:
            with suppress(OSError):
                os.replace(candidate, path)
            return dict(torch.load(io.BytesIO(body), map_location="cpu", weights_only=False))
    if found:
        raise RunError(
            f"{path.parent}: no checkpoint is intact ({', '.join(p.name for p in found)}); "
            "delete them to start this run over"
        )
    return None


def previous(path: Path) -> Path:
    """Name of the predecessor kept beside a checkpoint."""
    return path.with_name(path.name + ".previous")


def remove(path: Path) -> None:
    """Delete a checkpoint and its predecessor, if any; in a read-only folder they stay, which does no harm."""
    for file in (path, previous(path), path.with_name(path.name + ".tmp")):
        with suppress(OSError):
            file.unlink()


def _dumped(state: dict[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def _staged(path: Path, *parts: bytes | memoryview) -> Path:
    """A temporary file beside ``path`` with these bytes, on disk; on an error none is left."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary
