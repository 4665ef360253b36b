"""Rounds: how long they take, and how much of that is training steps."""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from benchmark.perf.federations import config_of, federation_of
from benchmark.perf.measure import CORES, Section, alone, interleaved, seconds

ROUNDS = 3
CASES = [  # network, clients, images per round
    ("small_cnn", 10, 50_000),
    ("resnet18", 2, 2_000),
    ("resnet9", 2, 400),
    ("wrn28_2", 2, 400),
]
NOTE = (
    "One local epoch in batches of 64, all clients, in one process. Besides steps: views, batches, states, uploads and "
    "their mean. Evaluation: of as many test images, at most 10 000, is not part of the round."
)


def section(method: str) -> Iterator[Section]:
    """Measure whole rounds, with one thread and with all cores."""
    headers = ["network", "clients", "images", "threads", "round, s", "besides steps, s", "evaluation, s"]
    table = Section(f"Rounds of `{method}`", headers, NOTE)
    for case in CASES:
        for count in sorted({1, CORES}):
            yield table.add([*case, count, *alone(row, method, *case, threads=count)])


def row(method: str, network: str, clients: int, images: int) -> list[float]:
    """Measure rounds and an evaluation."""
    data = {"images": images, "num_clients": clients, "labelled_clients": clients}
    made = federation_of(config_of(method, {}, data, model=network))
    return [*round_seconds(made), interleaved({"test": made.evaluate})["test"]]


def round_seconds(made: Federation) -> tuple[float, float]:
    """Seconds of the round of median length behind the first one, and of what is no training step in it."""
    taken, compute = [], Fit.compute
    made.run_round(0)
    for number in range(1, ROUNDS + 1):
        steps: list[float] = []

        def timed(fit: Fit, batch: Any, number: int, steps: list[float] = steps) -> Any:
            done: list[Any] = []
            steps.append(seconds(lambda: done.append(compute(fit, batch, number))))
            return done[0]

        with patch.object(Fit, "compute", timed):
            whole = seconds(partial(made.run_round, number))
        taken.append((whole, whole - sum(steps)))
    return statistics.median_low(taken)
