"""Profile of visits on a GPU."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmark.federation.loop import Federation
from benchmark.perf.federations import synchronize
from methods.base import Visit

TOP, LONG = 8, 70


def kernels(made: Federation, visits: Sequence[Visit], device: str) -> list[list[Any]]:
    """Kernels by their share of a GPU's busy time in visits, in percent, after a line for its idle time.

    Args:
        made: the federation, whose slots have recorded their steps.
        visits: visits of one round.
        device: ``cuda``; on the CPU its operators stand in for kernels, to try this code.
    """
    activity, kind = ProfilerActivity.CPU, DeviceType.CPU
    if device == "cuda":
        activity, kind = ProfilerActivity.CUDA, DeviceType.CUDA
    synchronize(device)
    with profile(activities=[activity]) as found:
        start = time.perf_counter()
        made.engine.run_visits(visits, made.server, {})
        synchronize(device)
        wall = 1e6 * (time.perf_counter() - start)
    taken, calls, spans = Counter[str](), Counter[str](), []
    for event in found.events() or []:
        if event.device_type == kind and not getattr(event, "is_user_annotation", False):
            span = event.time_range.start, event.time_range.end
            spans.append(span)
            taken[event.name] += span[1] - span[0]
            calls[event.name] += 1
    total = sum(taken.values()) or 1.0
    idle = ["(idle)", "-", "-", 100.0 * (1.0 - covered(spans) / wall)]
    top = [[name[:LONG], calls[name], 100.0 * part / total, "-"] for name, part in taken.most_common(TOP)]
    return [idle, *top]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
