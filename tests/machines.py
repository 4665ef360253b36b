"""Made-up machines: files of a kernel that say what a test wants."""

import os
from pathlib import Path

import pytest

from datamodules.common import memory


class Machine:
    """What the kernel says of a machine: nothing at first, but the number of its cores.

    Args:
        folder: the folder of ``proc`` and ``sys``.
        patch: puts things back afterwards.
        cores: CPU cores that this process may use.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, cores: int = 2) -> None:
        self.folder, self.cores = folder, cores
        patch.setattr(memory, "ROOT", folder)
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(self.cores)))

    def write(self, **files: str) -> None:
        """Write files by name, in which two underscores stand for a slash."""
        for name, text in files.items():
            path = self.folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f"{path.name}.new")
            new.write_text(text)
            new.replace(path)
