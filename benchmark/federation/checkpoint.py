"""Checkpoints that survive a kill at any moment. A save writes only what has changed.

A checkpoint is a head, ``checkpoint.pt``, and one file per client in ``checkpoint.clients/`` with what it keeps. The
head holds the rest of the state and names the clients' files; each name contains the SHA-256 of the file. A save writes
the files of clients that have changed, then replaces the head. The previous head stays, with the files that it names.
Then the files that neither head names are removed. Every file is written under a temporary name, fsynced and renamed.
During a save there are three generations on disk.
"""

import hashlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning import Fabric
from torch import Tensor

from benchmark.federation.checkpoint_files import REMEDY, OnDisk, dumped, opened, staged, write_whole
from benchmark.federation.collectives import from_first, tensors_in
from datamodules.common.errors import RunError
from datamodules.common.files import read_bytes

MAGIC = b"fssl-bench checkpoint 2\n"
DIGEST_BYTES = 32
PARTS = ("round", "server", "clients", "server_state", "bytes")  # of a run's state, from the first version on
PER_CLIENT = ("clients", "memory")  # parts of a state that are stored by client, one file each
SHARE = 0.02  # of the elapsed time, the most that is spent on saving
FIRST_RATE = 1e8  # bytes per second, assumed until a save has been timed

Saved = list[tuple[weakref.ReferenceType[Tensor], int]]
"""The tensors of a client when they were saved, and how often each had been changed in place."""


class Checkpoint:
    """The checkpoint of a run in progress: knows what is on disk and what a save costs. Call ``load`` first.

    Args:
        path: the head.
        every_s: least number of seconds between two saves; 0 saves every round, whatever it costs.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, path: Path, every_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.every_s, self.clock = path, every_s, clock
        self.known: dict[tuple[str, int], tuple[Saved, str]] = {}
        self.now: set[str] = set()
        self.before: set[str] = set()
        self.began = self.last = clock()
        self.look_at = self.began + every_s
        self.spent, self.bytes = 0.0, 0

    def due(self, state: Mapping[str, Any]) -> bool:
        """Whether it is time to save: the interval has passed, and saving stays within ``SHARE`` of the elapsed time.

        The cost is estimated from the bytes that have changed and the speed of earlier saves.
        """
        if self.every_s == 0:
            return True
        if self.clock() < self.look_at:
            return False
        rate = self.bytes / self.spent if self.spent and self.bytes else FIRST_RATE
        paid_at = self.began + (self.spent + self.changed_bytes(state) / rate) / SHARE
        self.look_at = max(self.look_at, paid_at)  # more may change until then, never less
        return self.clock() >= paid_at

    def changed_bytes(self, state: Mapping[str, Any]) -> int:
        """Bytes of the tensors that a save would write."""
        own = [value for key, value in _entries(state) if not self._is_saved(key, _marks(value))]
        return num_bytes(_rest(state)) + num_bytes(own)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write what has changed since the last save; the previous checkpoint is kept as the predecessor.

        A client's tensors are unchanged if they are the same objects and PyTorch has counted no in-place change.

        Raises:
            OSError: a file cannot be written, e.g. to a full disk; names the file. The checkpoint on disk is as before,
                and no partial file is left.
            RunError: ``state`` holds more than tensors and plain data.
        """
        began, changed = self.clock(), self.changed_bytes(state)
        known: dict[tuple[str, int], tuple[Saved, str]] = {}
        kept: dict[str, dict[int, str]] = {part: {} for part in PER_CLIENT if part in state}
        head: dict[str, Any] = {**_rest(state), **{part: {} for part in kept}, "kept": kept}
        new: set[str] = set()
        try:
            for (part, client), value in _entries(state):
                marks = _marks(value)
                if isinstance(value, OnDisk):
                    name = f"{part}-{client}-{value.digest}.pt"
                    if name not in self.now:
                        value.give(_folder(self.path) / name)
                        new.add(name)
                elif not marks:  # no tensors: not worth a file
                    head[part][client], kept[part][client] = value, ""
                    continue
                elif self._is_saved((part, client), marks):
                    name = self.known[part, client][1]
                else:
                    body = dumped(value, f"state[{part!r}][{client!r}]")
                    name = f"{part}-{client}-{hashlib.sha256(body).hexdigest()}.pt"
                    write_whole(_folder(self.path) / name, body)
                    new.add(name)
                known[part, client] = _remembered(marks), name
                kept[part][client] = name
            body = dumped(head)
            temporary = staged(self.path, MAGIC + hashlib.sha256(body).digest(), body)
        except (OSError, RunError):
            self._discard(new - self.now - self.before)
            raise
        if self.path.exists():
            os.replace(self.path, previous(self.path))
            oldest, self.before = self.before, self.now
        else:
            oldest = set()
        os.replace(temporary, self.path)
        self.known, self.now = known, {name for _, name in known.values()}
        self._discard(oldest - self.before - self.now)
        self.last = self.clock()
        self.spent, self.bytes = self.spent + self.last - began, self.bytes + changed
        self.look_at = self.last + self.every_s

    def load(self) -> dict[str, Any] | None:
        """The newest intact checkpoint, or ``None`` if there is none and never was.

        If the head is damaged, its predecessor is loaded and takes its place, so that the damaged file cannot become
        the predecessor. Files that belong to neither are removed.

        Raises:
            RunError: files exist but no checkpoint is intact, or an intact one holds more than tensors and plain data.
        """
        wrong = []
        for candidate in (self.path, previous(self.path)):
            if not candidate.exists():
                continue
            try:
                state, names = _read(candidate, _folder(self.path))
            except _Damaged as damage:
                wrong.append(str(damage))
                continue
            with suppress(OSError):
                os.replace(candidate, self.path)
            self.now, self.before = set(names.values()), files_of(previous(self.path))
            self._discard(_listed(self.path) - self.now - self.before)
            self._note(state, names)
            return state
        if wrong:
            raise RunError(
                f"{self.path.parent}: no checkpoint is intact ({'; '.join(wrong)}); delete {self.path.name} and "
                f"{previous(self.path).name} to start this run over"
            )
        self._discard(_listed(self.path))
        return None

    def taken_up(self, state: Mapping[str, Any]) -> None:
        """Note that ``state`` is what was loaded, now in the run's own tensors: it need not be written again."""
        self._note(state, {key: name for key, (_, name) in self.known.items()})

    def _note(self, state: Mapping[str, Any], names: Mapping[tuple[str, int], str]) -> None:
        self.known = {key: (_remembered(_marks(value)), names[key]) for key, value in _entries(state) if key in names}

    def _is_saved(self, key: tuple[str, int], marks: list[tuple[Tensor, int]]) -> bool:
        before = self.known.get(key, ([], ""))[0]
        return len(before) == len(marks) > 0 and all(
            tensor is saved() and version == then
            for (tensor, version), (saved, then) in zip(marks, before, strict=True)
        )

    def _discard(self, files: set[str]) -> None:
        for name in files:
            with suppress(OSError):
                (_folder(self.path) / name).unlink()


class _Damaged(Exception):
    """A file of a checkpoint is missing, torn or changed; names it."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write all of ``state`` to the checkpoint ``path``; see ``Checkpoint.save``."""
    one = Checkpoint(path)
    one.now, one.before = files_of(path), files_of(previous(path))
    one.save(state)


def sent_to_all(fabric: Fabric, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The first process's state, in every process; what a client keeps is a message of its own."""
    if fabric.world_size == 1:
        return None if state is None else dict(state)
    entries = [] if state is None else list(_entries(state))
    rest, keys = from_first(fabric, (None if state is None else _rest(state), [key for key, _ in entries]))
    if rest is None:
        return None
    whole: dict[str, Any] = {**rest, **{part: {} for part in PER_CLIENT}}
    for number, (part, client) in enumerate(keys):
        whole[part][client] = from_first(fabric, entries[number][1] if entries else None)
    return whole


def load(path: Path) -> dict[str, Any] | None:
    """The newest intact checkpoint of ``path``; see ``Checkpoint.load``."""
    return Checkpoint(path).load()


def check(state: Mapping[str, Any], where: Path) -> None:
    """Check that a state is that of a run (``Federation.state_dict``).

    Raises:
        RunError: something is missing; names it.
    """
    for part in PARTS:
        if part not in state:
            raise RunError(f"{where}: not the checkpoint of a run: {part} is missing; {REMEDY}")


def previous(path: Path) -> Path:
    """Path of a checkpoint's predecessor, beside it."""
    return path.with_name(path.name + ".previous")


def remove(path: Path) -> None:
    """Delete a checkpoint, its predecessor and their clients' files, if any.

    In a read-only folder they stay, harmlessly.
    """
    for file in (path, previous(path), path.with_name(path.name + ".tmp"), *_folder(path).glob("*")):
        with suppress(OSError):
            file.unlink()
    with suppress(OSError):
        _folder(path).rmdir()


def _folder(path: Path) -> Path:
    """The folder of the clients' files."""
    return path.with_suffix(".clients")


def _listed(path: Path) -> set[str]:
    """Names of all files in the clients' folder, temporary ones included."""
    with suppress(OSError):
        return set(os.listdir(_folder(path)))
    return set()


def _entries(state: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], Any]]:
    """What is saved for each client, by part and client."""
    for part in PER_CLIENT:
        for client, value in state.get(part, {}).items():
            yield (part, client), value


def _rest(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in PER_CLIENT}


def num_bytes(value: Any) -> int:
    """Bytes of the tensors of a value."""
    return sum(tensor.nbytes for tensor in tensors_in(value))


def _marks(value: Any) -> list[tuple[Tensor, int]]:
    """The tensors of a value and how often each was changed in place (inference tensors keep no count)."""
    return [(tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors_in(value)]


def _remembered(marks: list[tuple[Tensor, int]]) -> Saved:
    """The marks with weak references, so that tensors a client no longer keeps are freed."""
    return [(weakref.ref(tensor), version) for tensor, version in marks]


def _head(path: Path) -> dict[str, Any]:
    """The content of a head.

    Raises:
        _Damaged: it cannot be read, or its checksum is wrong.
        RunError: it holds more than tensors and plain data.
    """
    try:
        raw = read_bytes(path)
    except OSError as error:
        raise _Damaged(f"{path.name}: {error.strerror}") from None
    start = len(MAGIC) + DIGEST_BYTES
    if raw[: len(MAGIC)] != MAGIC or hashlib.sha256(raw[start:]).digest() != raw[len(MAGIC) : start]:
        raise _Damaged(f"{path.name} is damaged")
    return dict(opened(raw[start:], path))


def files_of(path: Path) -> set[str]:
    """Names of the clients' files that a head refers to; none if the head cannot be read."""
    if not path.exists():
        return set()
    try:
        return {name for names in _head(path).get("kept", {}).values() for name in names.values() if name}
    except (_Damaged, RunError):
        return set()


def _read(path: Path, folder: Path) -> tuple[dict[str, Any], dict[tuple[str, int], str]]:
    """The state in a head and the files that it names, and the names of those files.

    Raises:
        _Damaged: one of them is missing, torn or changed.
        RunError: one of them holds more than tensors and plain data.
    """
    state = _head(path)
    names: dict[tuple[str, int], str] = {}
    for part, files in state.pop("kept", {}).items():
        here, state[part] = state[part], {}
        for client, name in files.items():
            if name:
                names[part, client] = name
            state[part][client] = opened(_intact(folder, name), folder / name) if name else here[client]
    return state, names


def _intact(folder: Path, name: str) -> bytes:
    """The bytes of a client's file."""
    try:
        body = read_bytes(folder / name)
    except OSError as error:
        raise _Damaged(f"{folder.name}/{name}: {error.strerror}") from None
    if not name.endswith(f"-{hashlib.sha256(body).hexdigest()}.pt"):
        raise _Damaged(f"{folder.name}/{name} is damaged")
    return body
