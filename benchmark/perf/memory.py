"""Gain from keeping freed memory in the process (see ``benchmark.launch.allocator``)."""

import torch
import torch.nn.functional as F

from benchmark.perf.measure import Section, Unit, interleaved, probe
from benchmark.perf.worker import Processes
from methods import models

NOTE = (
    "One thread, NHWC, float32; the same work alternately in two processes, one of which returns memory to the system."
)


def forward(number: int, batch: int) -> Unit:
    """Predictions of WRN-28-2 on a batch."""
    model, x = models.build("wrn28_2", 10), _images(batch)

    def unit() -> None:
        with torch.no_grad():
            model(x)

    return unit


def step(number: int, batch: int) -> Unit:
    """Gradients of WRN-28-2 on a batch."""
    model, x = models.build("wrn28_2", 10), _images(batch)
    return lambda: F.cross_entropy(model(x), torch.arange(batch) % 10).backward()  # type: ignore[no-untyped-call]


def _images(batch: int) -> torch.Tensor:
    return torch.rand(batch, 3, 32, 32).to(memory_format=torch.channels_last)


def section() -> list[Section]:
    """Measure large and small batches, with and without it."""
    before, rows = probe(), []
    for name, make, batch in (
        ("forward", forward, 2048),
        ("forward", forward, 256),
        ("gradient", step, 500),
        ("gradient", step, 32),
    ):
        made = {kept: Processes(make, 1, batch, keep=kept) for kept in (True, False)}
        taken = interleaved({str(kept): process for kept, process in made.items()})
        for process in made.values():
            process.close()
        rows.append([name, batch, taken["False"], taken["True"], taken["False"] / taken["True"]])
    headers = ["work", "images", "given back, s", "kept, s", "ratio"]
    return [Section("Memory kept in the process", headers, rows, NOTE, (before, probe()))]
