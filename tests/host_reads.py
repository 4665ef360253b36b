"""Counts what would keep a step from being recorded."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from benchmark.federation.recording import WatchedMethods, WatchedOperations


@contextmanager
def count_host_reads() -> Iterator[Counter[str]]:
    """Count operations that read numbers back to the host or make shapes that depend on data, by their names.

    The rules are those of ``record``; here nothing is refused.

    While operations are watched, torch differentiates some functions by other formulas: tangents of norm layers round
    differently, and the backward pass of ``prod`` reads nothing. Steps in this context use the formulas of a recording.
    """
    found: Counter[str] = Counter()

    def count(name: str) -> None:
        found[name] += 1

    with WatchedMethods(count), WatchedOperations(count):
        yield found
