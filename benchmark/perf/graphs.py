"""Speed of replayed steps: one CUDA graph of many steps, and several streams at once, against one replay per step."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.recording import record
from benchmark.perf.federations import arithmetic, synchronize
from benchmark.perf.measure import interleaved
from methods import models

MANY, REPEATS, REPLAYS, STREAMS = 16, 5, 5, 8
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
    f"{STREAMS} streams, ms",
    "one / streams",
]
NOTE = (
    f"Milliseconds per step, until the device has done it: {REPLAYS * MANY} steps without a recording, by replays of "
    f"one recorded step, and by {REPLAYS} replays of a recording of {MANY}; then by replays of {STREAMS} models' steps "
    f"in turn, each in a stream of its own; the median of {REPEATS}. A step: forward pass, cross-entropy, backward "
    "pass, clipped gradients, SGD with momentum; the batch stays where it is, so nothing is copied. Recording many "
    f"steps is worth its code from {WORTH} on (docs/decisions.md); one / streams is what more slots can gain at most."
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
    """Measure a line of the table.

    Args:
        network: name of the network.
        batch: images per step.
        precision: see ``arithmetic``.
        device: ``cuda``; ``cpu`` to try this code.
        replays: replays of the recording of ``MANY`` steps.
    """
    place = torch.device(device)

    def new_stream() -> Any:
        return torch.get_device_module(place).Stream() if device == "cuda" else None  # recording needs its own

    with arithmetic(precision) as known:
        stream, steps = new_stream(), replays * MANY
        with torch.cuda.stream(stream):
            step = step_of(network, batch, known, place)

            def many() -> None:
                for _ in range(MANY):
                    step()

            many()  # an optimiser's first step creates its state
            units = {
                "eager": repeated(step, steps, device),
                "one": repeated(record(step, place, stream=stream).replay, steps, device),
                "many": repeated(record(many, place, stream=stream).replay, replays, device),
            }
            eager, single, chunk = (1000 * taken / steps for taken in interleaved(units, REPEATS).values())
        turns = []
        for other in [new_stream() for _ in range(STREAMS)]:
            with torch.cuda.stream(other):
                step = step_of(network, batch, known, place)
                step()
                turns.append((other, step, record(step, place, stream=other)))  # the step's tensors must outlive it

        def turn() -> None:
            for other, _, recording in turns:
                with torch.cuda.stream(other):
                    recording.replay()

        at_once = 1000 * interleaved({"it": repeated(turn, replays, device)}, REPEATS)["it"] / (replays * STREAMS)
    verdict = "worth it" if single / chunk >= WORTH else "not worth it"
    return [network, batch, precision, eager, single, chunk, single / chunk, verdict, at_once, single / at_once]
