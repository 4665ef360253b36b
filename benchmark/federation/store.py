"""What clients keep between visits: in host memory up to a limit, the least recently visited clients on disk."""

import shutil
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmark.federation.checkpoint import OnDisk
from benchmark.federation.collectives import join_tensors, split_tensors
from benchmark.federation.site import ClientState

STATES = "states"  # folders in that of a run, one per process, for states that memory has no room for


class Store(MutableMapping[int, ClientState]):
    """Clients' states by client id, on the host.

    Args:
        limit: bytes of states that may stay in memory; the state set last always does. ``None``: no limit.
        folder: where files of the other states get a folder, deleted at the end; default: the system's temporary one.
    """

    def __init__(self, limit: int | None = None, folder: Path | None = None) -> None:
        self.limit, self.folder, self.bytes = limit, folder, 0
        self._memory: dict[int, tuple[ClientState, int]] = {}  # with its bytes, in the order they were set
        self._disk: dict[int, OnDisk] = {}
        self._files: Path | None = None
        self._written = 0

    def saved(self) -> dict[int, tuple[Any, Any] | OnDisk]:
        """What a checkpoint saves of each client: its tensors and optimiser states, or the file that holds both."""
        return {**{client: (kept.tensors, kept.optimizers) for client, (kept, _) in self._memory.items()}, **self._disk}

    def __getitem__(self, client: int) -> ClientState:
        return self._memory[client][0] if client in self._memory else ClientState(*self._disk[client].read())

    def __setitem__(self, client: int, state: ClientState) -> None:
        if client in self:
            del self[client]
        skeleton, tensors = split_tensors(state)
        # In host memory, pinned if it comes from a GPU.
        tensors = [tensor.cpu().pin_memory() if tensor.is_cuda else tensor.cpu() for tensor in tensors]
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        self._memory[client] = join_tensors(skeleton, tensors), num_bytes
        self.bytes += num_bytes
        while self.limit is not None and self.bytes > self.limit and len(self._memory) > 1:
            self._put_away(next(iter(self._memory)))

    def __delitem__(self, client: int) -> None:
        if client in self._memory:
            self.bytes -= self._memory.pop(client)[1]
        else:
            del self._disk[client]

    def __contains__(self, client: object) -> bool:
        return client in self._memory or client in self._disk

    def __iter__(self) -> Iterator[int]:
        return iter([*self._memory, *self._disk])

    def __len__(self) -> int:
        return len(self._memory) + len(self._disk)

    def clear(self) -> None:
        """Drop all states without reading their files."""
        for client in list(self):
            del self[client]

    def _put_away(self, client: int) -> None:
        state = self._memory[client][0]
        if self._files is None:
            self._files = Path(mkdtemp(prefix=f"{STATES}.", dir=self.folder))
            weakref.finalize(self, shutil.rmtree, self._files, ignore_errors=True)
        self._written += 1
        file = OnDisk(self._files / f"{self._written}.pt", (state.tensors, state.optimizers))
        del self[client]
        self._disk[client] = file


def discard_states(path: Path) -> None:
    """Delete the states that killed processes have left in the folder of a run on which no process works."""
    for left in path.glob(f"{STATES}.*"):
        shutil.rmtree(left, ignore_errors=True)
