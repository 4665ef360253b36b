"""Gain from keeping freed memory in the process (see ``benchmark.launch.process``)."""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.perf.measure import Section, interleaved
from benchmark.perf.worker import process, together
from methods import models

NOTE = (
    "One thread, NHWC, float32; the same work alternately in two processes, one of which returns memory to the system."
)


@cache
def work(batch: int) -> tuple[nn.Module, Tensor]:
    """WRN-28-2 and a batch of images, made once per process."""
    images = torch.rand(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    return models.build("wrn28_2", 10), images


def forward(batch: int) -> None:
    """Predict a batch."""
    model, images = work(batch)
    with torch.no_grad():
        model(images)


def gradient(batch: int) -> None:
    """Compute the gradients of a batch."""
    model, images = work(batch)
    F.cross_entropy(model(images), torch.arange(batch) % 10).backward()  # type: ignore[no-untyped-call]


def section() -> list[Section]:
    """Measure large and small batches, with and without it."""
    headers = ["work", "images", "given back, s", "kept, s", "ratio"]
    table = Section("Memory kept in the process", headers, NOTE)
    for task, batch in ((forward, 2048), (forward, 256), (gradient, 500), (gradient, 32)):
        with process() as keeping, process(keep=False) as returning:
            taken = interleaved(
                {"back": partial(together, [returning], task, batch), "kept": partial(together, [keeping], task, batch)}
            )
            back, kept = taken.values()
        table.add([[task.__name__, batch, back, kept, back / kept]])
    return [table]
