"""Made-up machines: files of a kernel that say what a test wants."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from datamodules.common import system


class Machine:
    """What the kernel says of a machine: nothing at first, but the number of its cores.

    Args:
        folder: the folder of ``proc`` and ``sys``.
        patch: puts things back afterwards.
        cores: CPU cores that this process may use.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, cores: int = 2) -> None:
        self.folder, self.cores = folder, cores
        self.ticks = [0, 0]
        patch.setattr(system, "ROOT", folder)
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(self.cores)))

    def write(self, **files: str) -> None:
        """Write files by name, in which two underscores stand for a slash."""
        for name, text in files.items():
            path = self.folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f"{path.name}.new")
            new.write_text(text)
            new.replace(path)

    def pass_time(self, busy: float, ticks: float = 1_000_000) -> None:
        """Let ``ticks`` pass on every core; for a share of them, ``busy``, it was in use."""
        self.ticks = [self.ticks[0] + round(busy * ticks), self.ticks[1] + round((1 - busy) * ticks)]
        used, idle = self.ticks
        self.write(proc__stat="".join(f"cpu{core} {used} 0 0 {idle} 0 0 0 0\n" for core in range(self.cores)))

    @contextmanager
    def beside_others(self, busy: float) -> Iterator[None]:
        """Let other programs use a share of all cores meanwhile."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.005):
                self.pass_time(busy)

        self.pass_time(busy)
        clock = threading.Thread(target=go_on)
        clock.start()
        try:
            yield
        finally:
            over.set()
            clock.join()
