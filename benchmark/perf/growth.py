"""Growth with registered clients, active clients and parameters: time, memory, checkpoints, exchange."""

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from lightning import Fabric

from benchmark.federation import checkpoint
from benchmark.federation.collectives import all_gather
from benchmark.federation.fit import Fit
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Section, probe, seconds
from benchmark.perf.worker import Processes
from methods import models

PIXELS = 16  # side of an image; small, so that a million clients fit into memory
SHARE = 4  # images of a client, one batch
ROUNDS, REPEATS = 3, 3
SWEEPS = (  # title, and cases of network, registered clients, active clients
    (
        "Registered clients",
        [*(("small_cnn", 10**power, 10) for power in range(2, 7)), ("small_cnn", 10**6, 1_000)],
    ),
    ("Active clients", [("small_cnn", 10_000, active) for active in (10, 100, 1_000)]),
    ("Parameters", [(model, 100, 10) for model in ("small_cnn", "wrn28_2", "resnet18", "wrn28_8")]),
)
BESIDE = [(10_000, 10), (10_000, 100), (10_000, 1_000), (1_000_000, 1_000)]  # registered and active clients
EXCHANGED = "wrn28_8"


@dataclass(frozen=True)
class Growth:
    """Cost of a few rounds.

    Args:
        parameters: number of the network's parameters.
        seconds: seconds per round, median.
        peak: largest size of the process, in MB.
        images: memory of the images in it, as stored and as laid out for the views, in MB.
        kept: state that a client keeps between visits, in MB.
        saving: seconds to save a checkpoint.
        saved: size of the checkpoint in MB.
    """

    parameters: int
    seconds: float
    peak: float
    images: float
    kept: float
    saving: float
    saved: float


def rounds(number: int, method: str, model: str, clients: int, active: int) -> Callable[[], Growth]:
    """Return a function that measures rounds of a federation whose clients keep momenta between visits."""

    def unit() -> Growth:
        data = _noise(clients)
        made = federation(method, data, model, participants=active, reset_momentum=False)
        made.run_round(0)
        taken = [seconds(partial(made.run_round, number)) for number in range(1, ROUNDS + 1)]
        with TemporaryDirectory() as place:
            path = Path(place) / "checkpoint.pt"
            saving = seconds(lambda: checkpoint.save(path, made.state_dict()))
            saved = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
        return Growth(
            sum(weight.numel() for weight in made.method.model.parameters()),
            statistics.median(taken),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            _image_bytes(data) / 1e6,
            made.engine.kept_bytes() / 1e6,
            saving,
            saved / 1e6,
        )

    return unit


def beside_steps(number: int, method: str, clients: int, active: int, sums: Any) -> Callable[[], list[float]]:
    """Measure a round on the small CNN: CPU seconds, those of its steps, megabytes of process and images."""

    def unit() -> list[float]:
        data = _noise(clients)
        made = federation(method, data, participants=active, reset_momentum=False, sums=sums)
        made.run_round(0)
        taken = []
        for number in range(1, ROUNDS + 1):
            began = time.process_time()
            with steps_timed() as steps:
                made.run_round(number)
            taken.append((time.process_time() - began, sum(steps)))
        whole, within = sorted(taken)[ROUNDS // 2]
        return [
            whole,
            within,
            whole - within,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            _image_bytes(data) / 1e6,
        ]

    return unit


@contextmanager
def steps_timed() -> Iterator[list[float]]:
    """Record the CPU seconds of every training step (forward, backward, optimiser) while the context is open."""
    taken: list[float] = []
    compute = Fit.compute

    def timed(fit: Fit, batch: Any, number: int) -> Any:
        began = time.process_time()
        try:
            return compute(fit, batch, number)
        finally:
            taken.append(time.process_time() - began)

    with patch.object(Fit, "compute", timed):
        yield taken


def bookkeeping(method: str) -> Section:
    """Measure the overhead of a round besides its steps."""
    before, rows = probe(), []
    for clients, active in BESIDE:
        for sums in ("ordered", "exact"):
            process = Processes(beside_steps, 1, method, clients, active, sums)
            (found,) = process()
            process.close()
            rows.append([clients, active, sums, *found])
    headers = [
        "registered",
        "active",
        "sums",
        "CPU s per round",
        "in steps",
        "besides steps",
        "process, MB",
        "images only, MB",
    ]
    note = (
        f"One thread and one process; the small CNN; clients have {SHARE} images of {PIXELS} x {PIXELS} pixels, which "
        "are one batch, and keep their momenta. CPU seconds of the median round; beside its steps are selection, "
        "states, batches and their views, uploads and their mean."
    )
    return Section(f"Growth of `{method}`: a round beside its steps", headers, rows, note, (before, probe()))


def _noise(clients: int) -> Noise:
    return Noise(
        SHARE * clients, pixels=PIXELS, side=PIXELS, num_clients=clients, labelled_clients=clients, partition="iid"
    )


def _image_bytes(data: Noise) -> int:
    layouts = {tensor.data_ptr(): tensor for tensor in (data.train_images, data.test_images, data._test_prepared)}
    return sum(tensor.numel() for tensor in (*layouts.values(), *data._prepared.values()))


def section(method: str) -> Iterator[Section]:
    """Measure a table per sweep, and the cost of an exchange."""
    for title, cases in SWEEPS:
        yield _sweep(method, title, cases)
    yield bookkeeping(method)
    yield exchange()


def _sweep(method: str, title: str, cases: list[tuple[str, int, int]]) -> Section:
    before, rows = probe(), []
    for model, clients, active in cases:
        process = Processes(rounds, 1, method, model, clients, active)
        (found,) = process()
        process.close()
        times = [found.seconds, found.peak, found.images, found.kept, found.saved, found.saving]
        rows.append([clients, active, found.parameters, *times])
    headers = [
        "registered",
        "active",
        "parameters",
        "s per round",
        "process, MB",
        "images only, MB",
        "kept per client, MB",
        "checkpoint, MB",
        "saving, s",
    ]
    note = (
        f"One thread; a client has {SHARE} images of {PIXELS} x {PIXELS} pixels, which are one batch, and keeps its "
        f"momenta. Median of {ROUNDS} rounds; the checkpoint is the one after them."
    )
    return Section(f"Growth of `{method}`: {title.lower()}", headers, rows, note, (before, probe()))


def exchange() -> Section:
    """Measure how long two processes take to exchange the uploads of ten clients of ``EXCHANGED``."""
    before, rows = probe(), []
    for clients in (2, 10):
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn")
        size, taken = fabric.launch(_exchanged, clients)  # type: ignore[arg-type]
        rows.append([clients, size / 1e6, taken, size / taken / 1e9])
    headers = ["active clients", "uploads, MB", "s per exchange", "GB/s"]
    note = (
        "Two processes of one thread with gloo on one machine; each holds the uploads of half the clients of "
        f"{EXCHANGED}."
    )
    return Section("Exchange between processes", headers, rows, note, (before, probe()))


def _exchanged(fabric: Fabric, clients: int) -> tuple[int, float]:
    torch.set_num_threads(1)
    weights = models.build(EXCHANGED, 10).state_dict()
    mine = [{name: value.clone() for name, value in weights.items()} for _ in range(clients // fabric.world_size)]
    size = clients * sum(value.numel() * value.element_size() for value in weights.values())
    taken = []
    for _ in range(REPEATS + 1):
        fabric.barrier()
        taken.append(seconds(lambda: all_gather(fabric, mine)))
    fabric.barrier()
    return size, statistics.median(taken[1:])
