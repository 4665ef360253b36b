"""Speed of one CUDA graph of many steps against one replay per step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.recording import record
from benchmark.perf.federations import arithmetic, synchronize
from methods import models

MANY, REPEATS, REPLAYS = 16, 5, 10
WORTH = 1.5
HEADERS = [
    "network",
    "batch",
    "precision",
    "eager, ms",
    "one step, ms",
    f"{MANY} steps, ms",
    "one / many",
    "in a graph",
]
NOTE = (
    f"Milliseconds per step, until the device has done it: without a recording, from {REPLAYS * MANY} replays of one "
    f"recorded step, and from {REPLAYS} replays of a recording of {MANY}. The best of {REPEATS}. A step: forward pass, "
    "cross-entropy, backward pass, clipped gradients, SGD with momentum; the batch stays where it is, so nothing is "
    f"copied. Recording many steps is worth its code from {WORTH} on (docs/decisions.md)."
)


def step_of(network: str, batch: int, precision: str, device: torch.device) -> Callable[[], Tensor]:
    """Return a supervised step on one random batch of 3 x 32 x 32 pixels, which returns the loss."""
    torch.manual_seed(0)
    model = models.build(network, 10).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    x = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device=device)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    return step


@contextmanager
def side_stream(device: torch.device) -> Iterator[Any]:
    """Use a separate stream, as recordings require; does nothing on the CPU."""
    if device.type == "cpu":
        yield None
        return
    accelerator: Any = torch.get_device_module(device)
    stream = accelerator.Stream()
    stream.wait_stream(accelerator.current_stream())
    with accelerator.stream(stream):
        yield stream


def milliseconds(work: Callable[[], None], steps: int, device: torch.device) -> float:
    """Time per step until the device has finished, the best of several."""
    best = float("inf")
    for _ in range(REPEATS + 1):  # the first is a warm-up
        synchronize(device.type)
        began = time.perf_counter()
        work()
        synchronize(device.type)
        best = min(best, time.perf_counter() - began)
    return 1000 * best / steps


def row(network: str, batch: int, precision: str, device: str = "cuda", replays: int = REPLAYS) -> list[Any]:
    """Measure a line of the table: eager steps, one step per recording, and ``MANY``."""
    place = torch.device(device)
    with arithmetic(precision) as known, side_stream(place) as stream:
        step = step_of(network, batch, known, place)

        def many() -> None:
            for _ in range(MANY):
                step()

        many()  # an optimiser's first step creates its state
        eager = milliseconds(many, MANY, place)
        one = record(step, place, stream=stream)

        def one_by_one() -> None:
            for _ in range(replays * MANY):
                one.replay()

        single = milliseconds(one_by_one, replays * MANY, place)
        together = record(many, place, stream=stream)

        def at_once() -> None:
            for _ in range(replays):
                together.replay()

        chunk = milliseconds(at_once, replays * MANY, place)
    verdict = "worth it" if single / chunk >= WORTH else "not worth it"
    return [network, batch, precision, eager, single, chunk, single / chunk, verdict]
