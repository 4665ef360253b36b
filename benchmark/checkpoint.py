"""Checkpoints that survive a kill at any moment: temporary name, fsync, rename, checksum, one predecessor."""

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import RunError

MAGIC = b"fssl-bench checkpoint 1\n"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically to ``path``; what was there stays beside it as ``<name>.previous``.

    Raises:
        OSError: it cannot be written, e.g. to a full disk; what was there is as it was, and no half file takes space.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getbuffer()
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(MAGIC + hashlib.sha256(body).digest())
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    if path.exists():
        os.replace(path, previous(path))
    os.replace(temporary, path)


def load(path: Path) -> dict[str, Any] | None:
    """The newest intact checkpoint of ``path`` and its predecessor, or ``None`` if neither exists.

    Raises:
        RunError: files exist but none is intact.
    """
    found = [p for p in (path, previous(path)) if p.exists()]
    for candidate in found:
        raw = candidate.read_bytes()
        head = len(MAGIC)
        body = raw[head + 32 :]
        if raw[:head] == MAGIC and hashlib.sha256(body).digest() == raw[head : head + 32]:
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
