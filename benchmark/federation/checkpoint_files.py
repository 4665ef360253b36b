"""Single files of tensors and plain data, read as no more than that: a file from elsewhere cannot run code."""

import hashlib
import io
import os
import pickle
import shutil
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datamodules.common.errors import RunError
from datamodules.common.files import named, read_bytes, regular

REMEDY = "bring this run's own checkpoint back, or delete the folder to start over"

AGAIN = (
    "the same command (without --overwrite) continues from the newest checkpoint that is intact. One that was saved "
    "since this client's last visit shares the file, so it may be an older one, or none"
)


class OnDisk:
    """A client's part of a state in a file of a checkpoint's format. The file is deleted with this object.

    Args:
        path: the file.
        digest: its SHA-256.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest
        weakref.finalize(self, path.unlink, missing_ok=True)

    @classmethod
    def write(cls, path: Path, value: Any) -> "OnDisk":
        """Write a value to a file.

        Raises:
            OSError: the disk is full; names the file.
            RunError: the value holds more than tensors and plain data.
        """
        body = dumped(value)
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return cls(path, hashlib.sha256(body).hexdigest())

    def read(self) -> Any:
        """Read the value.

        Raises:
            RunError: the file is missing or damaged.
        """
        try:
            body = read_bytes(self.path)
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}; {AGAIN}") from None
        if hashlib.sha256(body).hexdigest() != self.digest:
            raise RunError(f"{self.path} is damaged; {AGAIN}")
        return opened(body, self.path)

    def give(self, path: Path) -> None:
        """Give the file a second name, durably; where hard links are impossible, copy it.

        A copy would write all that clients keep once more. So damage in place is damage under both names; the digest
        tells it.
        """
        with named(path):
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(path.name + ".tmp")
            temporary.unlink(missing_ok=True)
            try:
                os.link(self.path, temporary)
            except OSError:
                shutil.copyfile(self.path, temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)


def save_plain(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically to ``path``, in one file that ``torch.load`` reads.

    Raises:
        OSError: it cannot be written; names the file. What was there before is still there.
    """
    os.replace(staged(path, dumped(state)), path)


def plain(value: Any, where: str = "state") -> Any:
    """The value with its tensors detached; it must consist of tensors and plain data.

    Args:
        value: numbers, strings, ``None``, tensors, and dicts, lists and tuples of them.
        where: its name in the message.

    Raises:
        RunError: it holds something else; the message says where.
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
        "strings, dicts, lists and tuples only. Keep the value in a registered tensor"
    )


def opened(body: bytes, path: Path) -> Any:
    """The value in the bytes of a file.

    Raises:
        RunError: they hold more than tensors and plain data; names the file.
    """
    try:
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, EOFError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RunError(
            f"{path}: this checkpoint holds more than tensors and plain data and was not opened ({first}); it was not "
            f"written by this program; {REMEDY}"
        ) from None


def dumped(value: Any, where: str = "state") -> memoryview:
    """The bytes of a file with this value, which must be ``plain``."""
    buffer = io.BytesIO()
    torch.save(plain(value, where), buffer)
    return buffer.getbuffer()


def write_whole(path: Path, body: memoryview) -> None:
    """Write a file that appears whole or not at all."""
    with named(path):
        path.parent.mkdir(exist_ok=True)
    os.replace(staged(path, body), path)


def staged(path: Path, *parts: bytes | memoryview) -> Path:
    """Write these bytes durably to a temporary file beside ``path``; after an error no file is left."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with named(path), open(temporary, "wb", opener=regular) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary
