"""Profile of a round's visits."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmark.federation.loop import Federation
from benchmark.perf.federations import Noise, federation, synchronize
from benchmark.perf.measure import Section, probe, threads
from benchmark.runs.environment import cores
from methods.base import Visit

TOP, CLIENTS, LONG = 8, 8, 70


def shares(made: Federation) -> list[tuple[str, float]]:
    """Operators by their share of a round's visits, in percent; the rest is Python and small operators."""
    visits = made.visits(0)
    made.engine.run_visits(visits, made.server, {})
    with profile(activities=[ProfilerActivity.CPU]) as found:
        made.engine.run_visits(visits, made.server, {})
    events = sorted(found.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in events)
    return [(e.key, 100.0 * e.self_cpu_time_total / total) for e in events[:TOP]]


def section(teacher: str, sharp: str) -> list[Section]:
    """Profile mean-teacher visits on the small CNN and sharpness-aware ones on WRN-28-2 (reference engine)."""
    with threads(cores()):
        before = probe()
        found = {}
        data = Noise(CLIENTS * 640, 100, num_clients=CLIENTS, partition="iid")
        found[f"{teacher}, small CNN"] = shares(federation(teacher, data, warmup_rounds=0))
        data = Noise(
            1_040, num_clients=4, partition="iid", scenario="server", num_labels=40, pipeline="randaugment_uniform"
        )
        made = federation(sharp, data, "wrn28_2", selection="fixed", threshold=0.0, local_epochs=1)
        found[f"{sharp}, WRN-28-2"] = shares(made)
        headers = [word for name in found for word in (name, "%")]
        rows = [[cell for pair in line for cell in pair] for line in zip(*found.values(), strict=True)]
        note = f"Self time of the {TOP} largest operators in a round's visits under the profiler, {cores()} threads."
        return [Section("Where the time of a round's visits goes", headers, rows, note, (before, probe()))]


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
