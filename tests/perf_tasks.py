"""Tasks for processes of ``benchmark.perf``, in a module that costs a process nothing to import."""

import os
import time
from pathlib import Path


def meet(folder: str) -> int:
    """Wait until the other process is there too, and tell how many threads this one has."""
    import torch

    (Path(folder) / str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.01)
    return torch.get_num_threads()


def fine(x: int) -> int:
    return 2 * x


def wrong() -> None:
    raise ValueError("first line\nsecond line")


def gone() -> None:
    os._exit(3)
