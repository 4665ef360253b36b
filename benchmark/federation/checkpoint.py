"""Checkpoints that survive a kill at any moment. A save writes only what has changed.

A checkpoint is a head, ``checkpoint.pt``, and in ``checkpoint.clients/`` a file for each part of ``PER_CLIENT`` and
client that has tensors. The head holds the rest of the state and names these files; each name contains the SHA-256 of
the file. A save writes the files that have changed, then replaces the head. The previous head stays, with its files.
Then the files that neither head names are removed. Every file is written under a temporary name, fsynced and renamed.
During a save there are three generations on disk.

Files are read as tensors and plain data alone: one from elsewhere cannot run code.
"""

import hashlib
import io
import os
import shutil
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor

from benchmark.federation.collectives import from_first, tensors_in, to_device
from datamodules.common.errors import RunError
from datamodules.common.files import named, replacing

MAGIC = b"fssl-bench checkpoint 2\n"
PER_CLIENT = ("clients", "memory")  # parts of a state that are stored by client, one file each
SHARE = 0.02  # of the time, the most that is spent on saving

AGAIN = (
    "the same command (without --overwrite) continues from the newest checkpoint that is intact. One that was saved "
    "since its client's last visit shares the file, so it may be an older one, or none"
)

Key = tuple[str, int]
"""A part of a state that is stored by client, and the client."""


class Damaged(Exception):
    """A file is missing, torn or changed; names it."""


class OnDisk:
    """A client's part of a state in a file of a checkpoint's format. The file is deleted with this object.

    Args:
        path: the file, which is written.
        value: tensors and plain data.

    Raises:
        OSError: the disk is full; names the file.
        RunError: the value holds more than tensors and plain data.
    """

    def __init__(self, path: Path, value: Any) -> None:
        body = dumped(value)
        self.path, self.digest = path, hashlib.sha256(body).hexdigest()
        with named(path):
            path.write_bytes(body)
        weakref.finalize(self, path.unlink, missing_ok=True)

    def read(self) -> Any:
        """Read the value.

        Raises:
            RunError: the file is missing or damaged.
        """
        try:
            return opened(read_intact(self.path, self.digest))
        except Damaged as damage:
            raise RunError(f"{damage}; {AGAIN}") from None

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


class Checkpoint:
    """The checkpoint of a run in progress: knows what is on disk and what a save costs.

    Call ``load`` first, unless the folder is new.

    Args:
        path: the head.
        every_s: least number of seconds between two saves; 0 saves every round, whatever it costs.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, path: Path, every_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.every_s, self.clock = path, every_s, clock
        self.folder = path.with_suffix(".clients")
        self.saved: dict[Key, tuple[str, int | None]] = {}  # the file of a client, and the round that it is of
        self.files, self.previous_files = set[str](), set[str]()  # that the head names, and its predecessor
        self.last, self.cost = clock(), 0.0  # when a save ended, and the seconds that it took

    def due(self) -> bool:
        """Whether to save now: ``every_s`` has passed, and the last save took at most ``SHARE`` of the time since."""
        wait = max(self.every_s, self.cost / SHARE) if self.every_s else 0.0
        return self.clock() >= self.last + wait

    def save(self, state: Mapping[str, Any]) -> None:
        """Write what has changed since the last save; the previous checkpoint is kept as the predecessor.

        What a client keeps is written again unless ``state["changed"]`` names the same round for it.

        Raises:
            OSError: a file cannot be written, e.g. to a full disk; names the file. The checkpoint on disk is as before,
                and no partial file is left.
            RunError: ``state`` holds more than tensors and plain data.
        """
        began = self.clock()
        head, entries = _parted(state)
        head |= {"kept": {part: {} for part in PER_CLIENT}, **{part: {} for part in PER_CLIENT}}
        files, oldest = dict[Key, str](), set[str]()
        try:
            for key, value in entries.items():
                part, client = key
                name = head["kept"][part][client] = self._file_of(key, value, state)
                if name:
                    files[key] = name
                else:  # no tensors: not worth a file
                    head[part][client] = value
            body = dumped(head)
            with replacing(self.path) as file:
                file.write(MAGIC + hashlib.sha256(body).digest())
                file.write(body)
                file.flush()  # a full disk is met here
                if self.path.exists():
                    os.replace(self.path, previous(self.path))
                    oldest, self.previous_files = self.previous_files, self.files
        except (OSError, RunError):
            self._discard(set(files.values()) - self.files - self.previous_files)
            raise
        self.saved = {key: (name, _changed(state, key)) for key, name in files.items()}
        self.files = set(files.values())
        self._discard(oldest - self.previous_files - self.files)
        self.last = self.clock()
        self.cost = self.last - began

    def load(self) -> dict[str, Any] | None:
        """The newest intact checkpoint, or ``None`` if there is neither a head nor its predecessor.

        If the head is missing or damaged, its predecessor is loaded and takes its place, so that a damaged head cannot
        become the predecessor. Files that belong to neither are removed.

        Raises:
            RunError: files exist but no checkpoint is intact.
            pickle.UnpicklingError: an intact one holds more than tensors and plain data.
        """
        damages, state = [], None
        for candidate in (self.path, previous(self.path)):
            if state is None and candidate.exists():
                try:
                    state = self._read(candidate)
                except Damaged as damage:
                    damages.append(str(damage))
                else:
                    with suppress(OSError):
                        os.replace(candidate, self.path)
                    self.previous_files = files_of(previous(self.path))
        if state is None and damages:
            raise RunError(
                f"{self.path.parent}: no checkpoint is intact ({'; '.join(damages)}); delete {self.path.name} and "
                f"{previous(self.path).name} to start this run over"
            )
        self._discard({file.name for file in self.folder.glob("*")} - self.files - self.previous_files)
        return state

    def _read(self, path: Path) -> dict[str, Any]:
        """The state of the checkpoint with this head."""
        state, saved = _head(path), dict[Key, tuple[str, int | None]]()
        for part, files in state.pop("kept", {}).items():
            values, state[part] = state[part], {}
            for client, name in files.items():
                if name:
                    digest = name.rpartition("-")[2].removesuffix(".pt")
                    values[client] = opened(read_intact(self.folder / name, digest))
                    saved[part, client] = name, _changed(state, (part, client))
                state[part][client] = values[client]
        self.saved, self.files = saved, {name for name, _ in saved.values()}
        return state

    def _file_of(self, key: Key, value: Any, state: Mapping[str, Any]) -> str:
        """Name of the file of what a client keeps, written unless it is there; empty if there is no tensor in it."""
        part, client = key
        name, saved_round = self.saved.get(key, ("", None))
        if saved_round is not None and saved_round == _changed(state, key):
            return name
        if isinstance(value, OnDisk):
            name = f"{part}-{client}-{value.digest}.pt"
            value.give(self.folder / name)
        elif not tensors_in(value):
            return ""
        else:
            body = dumped(value, f"state[{part!r}][{client!r}]")
            name = f"{part}-{client}-{hashlib.sha256(body).hexdigest()}.pt"
            self.folder.mkdir(exist_ok=True)
            with replacing(self.folder / name) as file:
                file.write(body)
        return name

    def _discard(self, files: set[str]) -> None:
        for name in files:
            with suppress(OSError):
                (self.folder / name).unlink()


def sent_to_all(fabric: Fabric, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The first process's state, in every process; what a client keeps is a message of its own."""
    rest, entries = _parted(state or {})
    if not (whole := from_first(fabric, rest)):
        return None
    whole |= {part: {} for part in PER_CLIENT}
    for part, client in from_first(fabric, list(entries)):
        whole[part][client] = to_device(from_first(fabric, entries.get((part, client))), torch.device("cpu"))
    return whole


def previous(path: Path) -> Path:
    """Path of a checkpoint's predecessor, beside it."""
    return path.with_name(path.name + ".previous")


def remove(path: Path) -> None:
    """Delete a checkpoint, its predecessor and their clients' files, if any.

    In a read-only folder they stay, harmlessly.
    """
    for file in (path, previous(path)):
        with suppress(OSError):
            file.unlink()
    shutil.rmtree(path.with_suffix(".clients"), ignore_errors=True)


def files_of(path: Path) -> set[str]:
    """Names of the clients' files that a head refers to; none if the head cannot be read."""
    try:
        found = {name for names in _head(path).get("kept", {}).values() for name in names.values() if name}
    except Damaged:
        return set()
    return {name for name in found if Path(name).name == name}  # they are deleted, and a stranger's head may name any


def _parted(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[Key, Any]]:
    """A state without what is stored by client, and that."""
    rest = {key: value for key, value in state.items() if key not in PER_CLIENT}
    return rest, {(part, client): value for part in PER_CLIENT for client, value in state.get(part, {}).items()}


def _changed(state: Mapping[str, Any], key: Key) -> int | None:
    """The last round that has changed what a client keeps, if the state says so; one of an older version does not."""
    part, client = key
    return state.get("changed", {}).get(part, {}).get(client)


def _head(path: Path) -> dict[str, Any]:
    """The content of a head.

    Raises:
        Damaged: it cannot be read, or its checksum is wrong.
    """
    start = len(MAGIC) + hashlib.sha256().digest_size
    raw = read_intact(path)
    if raw[: len(MAGIC)] != MAGIC or hashlib.sha256(raw[start:]).digest() != raw[len(MAGIC) : start]:
        raise Damaged(f"{path.parent.name}/{path.name} is damaged")
    return dict(opened(raw[start:]))


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


def dumped(value: Any, where: str = "state") -> memoryview:
    """The bytes of a file that ``torch.load`` reads, with this value, which must be ``plain``."""
    buffer = io.BytesIO()
    torch.save(plain(value, where), buffer)
    return buffer.getbuffer()


def opened(body: bytes) -> Any:
    """The value in the bytes of a file.

    Raises:
        pickle.UnpicklingError: they hold more than tensors and plain data.
    """
    return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)


def read_intact(path: Path, digest: str | None = None) -> bytes:
    """The bytes of a file, with this SHA-256 if one is given.

    Raises:
        Damaged: it cannot be read, or has another.
    """
    try:
        with open(path, "rb") as file:
            body = file.read()
    except OSError as error:
        raise Damaged(f"{path.parent.name}/{path.name}: {error.strerror}") from None
    if digest is not None and hashlib.sha256(body).hexdigest() != digest:
        raise Damaged(f"{path.parent.name}/{path.name} is damaged")
    return body
