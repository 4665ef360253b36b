"""Speed of one CUDA graph of many steps against one replay per step."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.recording import record
from benchmark.perf.federations import arithmetic, synchronize
from benchmark.perf.measure import interleaved
from methods import models

MANY, REPEATS, REPLAYS = 16, 5, 5
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
    f"Milliseconds per step, until the device has done it: {REPLAYS * MANY} steps without a recording, by replays of "
    f"one recorded step, and by {REPLAYS} replays of a recording of {MANY}; the median of {REPEATS}. A step: forward "
    "pass, cross-entropy, backward pass, clipped gradients, SGD with momentum; the batch stays where it is, so nothing "
    f"is copied. Recording many steps is worth its code from {WORTH} on (docs/decisions.md)."
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


def repeated(work: Callable[[], object], times: int, device: str) -> Callable[[], None]:
    """Return a function that does work so many times and waits for the device."""

    def unit() -> None:
        for _ in range(times):
            work()
        synchronize(device)

    return unit


def row(network: str, batch: int, precision: str, device: str = "cuda", replays: int = REPLAYS) -> list[Any]:
    """Measure a line of the table: eager steps, one step per recording, and ``replays`` recordings of ``MANY``."""
    place = torch.device(device)
    stream: Any = torch.get_device_module(place).Stream() if device == "cuda" else None  # recording needs its own
    with arithmetic(precision) as known, torch.cuda.stream(stream):
        step = step_of(network, batch, known, place)

        def many() -> None:
            for _ in range(MANY):
                step()

        many()  # an optimiser's first step creates its state
        steps = replays * MANY
        units = {
            "eager": repeated(step, steps, device),
            "one": repeated(record(step, place, stream=stream).replay, steps, device),
            "many": repeated(record(many, place, stream=stream).replay, replays, device),
        }
        eager, single, chunk = (1000 * taken / steps for taken in interleaved(units, REPEATS).values())
    verdict = "worth it" if single / chunk >= WORTH else "not worth it"
    return [network, batch, precision, eager, single, chunk, single / chunk, verdict]
