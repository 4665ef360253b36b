"""What clients keep between visits: in host memory up to a limit, the least recently visited clients on disk."""

import secrets
import shutil
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmark.federation.checkpoint_files import OnDisk
from benchmark.federation.collectives import join_tensors, split_tensors, tensors_in
from benchmark.federation.site import ClientState

HOST = torch.device("cpu")
STATES = "states"  # folders in that of a run, one per process, for states that memory has no room for


class _Held(NamedTuple):
    """A state in host memory, and the devices that its tensors came from."""

    state: ClientState
    devices: list[torch.device]
    bytes: int


class Store(MutableMapping[int, ClientState]):
    """Clients' states by client id; a state that is asked for is on its device again.

    Args:
        limit: bytes of states that may stay in memory; the state set last always does. ``None``: no limit.
        folder: for the files of the other states; emptied first, and deleted at the end. Required with a limit.
    """

    def __init__(self, limit: int | None = None, folder: Path | None = None) -> None:
        self.limit, self.bytes = limit, 0
        self._here: dict[int, _Held] = {}  # in the order they were set
        self._there: dict[int, tuple[OnDisk, list[torch.device]]] = {}
        self._folder, self._written = folder, 0
        self._prefix = secrets.token_hex(4)  # of its files: an earlier store of the folder may end later
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            weakref.finalize(self, _remove, folder, self._prefix)

    def saved(self) -> dict[int, tuple[Any, Any] | OnDisk]:
        """What a checkpoint saves of each client: its tensors and optimiser states, or the file that holds both."""
        here = {client: (held.state.tensors, held.state.optimizers) for client, held in self._here.items()}
        return {**here, **{client: file for client, (file, _) in self._there.items()}}

    def __getitem__(self, client: int) -> ClientState:
        if client in self._here:
            held = self._here[client]
            return _moved(held.state, held.devices)[0]
        file, devices = self._there[client]
        return _moved(ClientState(*file.read()), devices)[0]

    def __setitem__(self, client: int, state: ClientState) -> None:
        if client in self:
            del self[client]
        held, devices = _moved(state)
        size = sum(tensor.nbytes for tensor in tensors_in(held))
        self._here[client] = _Held(held, devices, size)
        self.bytes += size
        while self.limit is not None and self.bytes > self.limit and len(self._here) > 1:
            self._put_away(next(iter(self._here)))

    def __delitem__(self, client: int) -> None:
        if client in self._here:
            self.bytes -= self._here.pop(client).bytes
        else:
            del self._there[client]

    def clear(self) -> None:
        """Drop all states without reading their files."""
        for client in list(self):
            del self[client]

    def __contains__(self, client: object) -> bool:
        return client in self._here or client in self._there

    def __iter__(self) -> Iterator[int]:
        return iter([*self._here, *self._there])

    def __len__(self) -> int:
        return len(self._here) + len(self._there)

    def _put_away(self, client: int) -> None:
        held, folder = self._here[client], self._folder
        assert folder is not None
        self._written += 1
        file = OnDisk.write(folder / f"{self._prefix}-{self._written}.pt", (held.state.tensors, held.state.optimizers))
        del self[client]
        self._there[client] = file, held.devices


def states_folder(path: Path, rank: int) -> Path:
    """The folder of the states of a process, in that of its run."""
    return path / f"{STATES}.{rank}"


def discard_states(path: Path) -> None:
    """Delete the states that killed processes have left in the folder of a run on which no process works."""
    for left in path.glob(f"{STATES}.*"):
        shutil.rmtree(left, ignore_errors=True)


def _remove(folder: Path, prefix: str) -> None:
    """Delete a store's files, and the folder if it is then empty."""
    with suppress(OSError):
        for file in folder.glob(f"{prefix}-*"):
            file.unlink(missing_ok=True)
        folder.rmdir()


def _moved(state: ClientState, devices: Sequence[torch.device] | None = None) -> tuple[ClientState, list[torch.device]]:
    """The state on ``devices`` (default: the host, pinned if it comes from a GPU), and the devices it came from."""
    skeleton, tensors = split_tensors(state)
    before = [tensor.device for tensor in tensors]
    if all(one == HOST for one in [*before, *(devices or ())]):
        return state, before
    if devices is None:
        there = [_on_host(tensor) for tensor in tensors]
    else:
        there = [tensor.to(device, non_blocking=True) for tensor, device in zip(tensors, devices, strict=True)]
    moved: ClientState = join_tensors(skeleton, there)
    return moved, before


def _on_host(tensor: Tensor) -> Tensor:
    host = tensor.to(HOST)
    return host.pin_memory() if tensor.is_cuda else host
