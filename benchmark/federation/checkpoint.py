"""Checkpoints that survive a kill at any moment: temporary name, fsync, rename, checksum, one predecessor.

They hold tensors and plain data only, and are read as such: a file from elsewhere cannot run code.
"""

import hashlib
import io
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datamodules.common.errors import RunError
from datamodules.common.files import named

MAGIC = b"fssl-bench checkpoint 1\n"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically to ``path``; what was there stays beside it as ``<name>.previous``.

    Raises:
        OSError: it cannot be written, e.g. to a full disk; what was there is as it was, and no half file takes space.
        RunError: ``state`` holds something else than tensors and plain data.
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
        RunError: files exist but none is intact, or one that is holds more than tensors and plain data.
    """
    found = [p for p in (path, previous(path)) if p.exists()]
    for candidate in found:
        raw = candidate.read_bytes()
        head = len(MAGIC)
        body = raw[head + 32 :]
        if raw[:head] == MAGIC and hashlib.sha256(body).digest() == raw[head : head + 32]:
            with suppress(OSError):
                os.replace(candidate, path)
            return _read(body, path)
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


def plain(value: Any, where: str = "state") -> Any:
    """The value with its tensors detached, if it is tensors and plain data all through.

    Args:
        value: numbers, strings, ``None``, tensors, and dicts, lists and tuples of them.
        where: its name in the message.

    Raises:
        RunError: it holds something else; says where.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {plain(key, f"a key of {where}"): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{where}[{number}]") for number, item in enumerate(value))
    raise RunError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint keeps tensors, numbers, "
        "strings, dicts, lists and tuples only. Keep it in a registered tensor"
    )


def _read(body: bytes, path: Path) -> dict[str, Any]:
    try:
        return dict(torch.load(io.BytesIO(body), map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, EOFError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RunError(
            f"{path}: this checkpoint holds more than tensors and plain data, and is not opened ({first}); it was not "
            "written by this program. Bring the run's own back, or delete it to start the run over"
        ) from None


def _dumped(state: dict[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(plain(state), buffer)
    return buffer.getbuffer()


def _staged(path: Path, *parts: bytes | memoryview) -> Path:
    """A temporary file beside ``path`` with these bytes, on disk; on an error none is left."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with named(path), open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary
