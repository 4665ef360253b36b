"""Where the time of a round's visits goes."""

from torch.profiler import ProfilerActivity, profile

from benchmark.federation.loop import Federation
from benchmark.launch.environment import cores
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Section, probe, threads

TOP, CLIENTS = 8, 8


def shares(made: Federation) -> list[tuple[str, float]]:
    """Operators by their share of the time of a round's visits, in percent; the rest is Python and small operators."""
    visits = made.visits(0)
    made.engine.visits(visits, made.server, {})
    with profile(activities=[ProfilerActivity.CPU]) as found:
        made.engine.visits(visits, made.server, {})
    events = sorted(found.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in events)
    return [(e.key, 100.0 * e.self_cpu_time_total / total) for e in events[:TOP]]


def section(teacher: str, sharp: str) -> list[Section]:
    """Mean-teacher visits on the small CNN by both engines, and sharpness-aware ones on WRN-28-2."""
    with threads(cores()):
        before = probe()
        found = {}
        for engine, stack in (("reference", None), ("stacked", CLIENTS)):
            data = Noise(CLIENTS * 640, 100, num_clients=CLIENTS, partition="iid")
            found[f"{teacher}, small CNN, {engine}"] = shares(federation(teacher, data, stack=stack, warmup_rounds=0))
        data = Noise(
            1_040, num_clients=4, partition="iid", scenario="server", num_labels=40, pipeline="randaugment_uniform"
        )
        made = federation(sharp, data, "wrn28_2", selection="fixed", threshold=0.0, local_epochs=1)
        found[f"{sharp}, WRN-28-2, reference"] = shares(made)
        headers = [word for name in found for word in (name, "%")]
        rows = [[cell for pair in line for cell in pair] for line in zip(*found.values(), strict=True)]
        note = f"Self time of the {TOP} largest operators in a round's visits under the profiler, {cores()} threads."
        return [Section("Where the time of a round's visits goes, by engine", headers, rows, note, (before, probe()))]
