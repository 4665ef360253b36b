"""Rounds: how long they take besides their steps, and how they grow with clients and parameters."""

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from benchmark.perf.measure import Section, alone, config_of, federation_of, seconds

ROUNDS = 3
GROWTH = [  # network, registered, active
    *(("small_cnn", 10**power, 10) for power in range(2, 7)),
    *(("small_cnn", 10_000, active) for active in (100, 1_000)),
    *((network, 100, 10) for network in ("wrn28_2", "resnet18", "wrn28_8")),
]
PIXELS = 16  # side of an image, so that those of a million clients fit into memory
SHARE = 4  # images of a client, one batch


def growth(method: str) -> Iterator[Section]:
    """Measure growth with registered clients, active clients and parameters."""
    headers = ["parameters", "registered", "active", "round, s", "besides steps, s"]
    headers += ["process, MB", "kept per client, MB", "checkpoint, MB", "saving, s"]
    note = (
        f"One thread; a client has {SHARE} images of {PIXELS} x {PIXELS} pixels, which are one batch, and keeps its "
        "momenta. Besides steps: views, batches, states, uploads and their mean. The checkpoint is the one after "
        f"{ROUNDS + 1} rounds."
    )
    table = Section(f"Growth of `{method}`", headers, note)
    for case in GROWTH:
        yield table.add(alone(growth_row, method, *case, threads=1))


def growth_row(method: str, network: str, clients: int, active: int) -> list[Any]:
    """Measure rounds of a federation whose clients keep momenta between visits."""
    data = {"images": SHARE * clients, "pixels": PIXELS, "side": PIXELS}
    data |= {"num_clients": clients, "labelled_clients": clients}
    config = config_of(method, {"reset_momentum": False}, data, model=network, roster={"participants": active})
    made = federation_of(config)
    taken = round_seconds(made)
    with TemporaryDirectory() as place:
        saving = seconds(lambda: Checkpoint(Path(place) / "checkpoint.pt").save(made.state_dict()))
        saved = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    parameters = sum(weight.numel() for weight in made.method.model.parameters())
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, or KiB
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return [parameters, clients, active, *taken, held / 1e6, made.engine.kept_bytes() / 1e6, saved / 1e6, saving]


def round_seconds(made: Federation) -> tuple[float, float]:
    """Seconds of the round of median length behind the first one, and of what is no training step in it."""
    taken, compute = [], Fit.compute
    made.run_round(0)
    for number in range(1, ROUNDS + 1):
        steps: list[float] = []

        def timed(fit: Fit, batch: Any, index: int, steps: list[float] = steps) -> Any:
            start = time.perf_counter()
            made = compute(fit, batch, index)
            steps.append(time.perf_counter() - start)
            return made

        with patch.object(Fit, "compute", timed):
            whole = seconds(partial(made.run_round, number))
        taken.append((whole, whole - sum(steps)))
    return statistics.median_low(taken)
