"""Where the time of a visit goes."""

from torch.profiler import ProfilerActivity, profile

from benchmark.environment import cores
from benchmark.federation import Federation
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Section, probe, threads

TOP = 8


def shares(made: Federation) -> list[tuple[str, float]]:
    """Operators by their share of a visit's time, in percent; the rest is Python and small operators."""
    visit = made.visits(0)[-1]
    made.engine.client(visit, made.server, None)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        made.engine.client(visit, made.server, None)
    events = sorted(found.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in events)
    return [(e.key, 100.0 * e.self_cpu_time_total / total) for e in events[:TOP]]


def section(teacher: str, sharp: str) -> list[Section]:
    """A mean-teacher visit on the small CNN and a sharpness-aware one on WRN-28-2."""
    with threads(cores()):
        before = probe()
        first = federation(teacher, Noise(10_000, 100, num_clients=2, partition="iid"), warmup_rounds=0)
        data = Noise(
            1_040, num_clients=4, partition="iid", scenario="server", num_labels=40, pipeline="randaugment_uniform"
        )
        second = federation(sharp, data, "wrn28_2", selection="fixed", threshold=0.0, local_epochs=1)
        pairs = zip(shares(first), shares(second), strict=True)
        rows = [[a[0], a[1], b[0], b[1]] for a, b in pairs]
        headers = [f"{teacher}, small CNN", "% of visit", f"{sharp}, WRN-28-2", "% of visit"]
        note = f"Self time of the {TOP} largest operators under the profiler, {cores()} threads."
        return [Section("Where the time of a visit goes", headers, rows, note, (before, probe()))]
