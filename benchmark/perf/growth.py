"""Growth with registered clients, active clients and parameters: time, memory, checkpoints, exchange."""

import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from benchmark.perf.measure import Section, seconds
from benchmark.perf.worker import process
from methods import models

PIXELS = 16  # side of an image; small, so that a million clients fit into memory
SHARE = 4  # images of a client, one batch
ROUNDS, REPEATS = 3, 3
SWEEPS: dict[str, list[tuple[str, int, int, str]]] = {  # title: cases of network, registered, active clients, sums
    "registered clients": [
        *(("small_cnn", 10**power, 10, "ordered") for power in range(2, 7)),
        ("small_cnn", 10**6, 1_000, "ordered"),
    ],
    "active clients": [("small_cnn", 10_000, active, "ordered") for active in (10, 100, 1_000)],
    "sums by rank": [
        *(("small_cnn", 10_000, active, "by_rank") for active in (10, 100, 1_000)),
        ("small_cnn", 10**6, 1_000, "by_rank"),
    ],
    "parameters": [(model, 100, 10, "ordered") for model in ("small_cnn", "wrn28_2", "resnet18", "wrn28_8")],
}
HEADERS = [
    "registered",
    "active",
    "parameters",
    "s per round",
    "CPU s per round",
    "in steps",
    "besides steps",
    "process, MB",
    "images only, MB",
    "kept per client, MB",
    "checkpoint, MB",
    "saving, s",
]
NOTE = (
    f"One thread; a client has {SHARE} images of {PIXELS} x {PIXELS} pixels, which are one batch, and keeps its "
    f"momenta. Medians of {ROUNDS} rounds; the checkpoint is the one after them. Besides steps are selection, states, "
    "batches and their views, uploads and their mean."
)
EXCHANGED = "wrn28_8"


def row(method: str, model: str, clients: int, active: int, sums: str) -> list[Any]:
    """Measure a line of a sweep: rounds of a federation whose clients keep momenta between visits."""
    data = Noise(
        SHARE * clients, pixels=PIXELS, side=PIXELS, num_clients=clients, labelled_clients=clients, partition="iid"
    )
    made = federation(method, data, model, participants=active, engine={"sums": sums}, reset_momentum=False)
    made.run_round(0)
    taken, used = [], []
    for number in range(1, ROUNDS + 1):
        began = time.process_time()
        with steps_timed() as steps:
            taken.append(seconds(partial(made.run_round, number)))
        used.append((time.process_time() - began, sum(steps)))
    whole, within = sorted(used)[ROUNDS // 2]
    with TemporaryDirectory() as place:
        saving = seconds(lambda: checkpoint.save(Path(place) / "checkpoint.pt", made.state_dict()))
        saved = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    return [
        clients,
        active,
        sum(weight.numel() for weight in made.method.model.parameters()),
        statistics.median(taken),
        whole,
        within,
        whole - within,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,  # it counts KiB
        _image_bytes(data) / 1e6,
        made.engine.kept_bytes() / 1e6,
        saved / 1e6,
        saving,
    ]


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


def _image_bytes(data: Noise) -> int:
    layouts = {tensor.data_ptr(): tensor for tensor in (data.train_images, data.test_images, data._test_prepared)}
    return sum(tensor.nbytes for tensor in (*layouts.values(), *data._prepared.values()))


def section(method: str) -> Iterator[Section]:
    """Measure a table per sweep, every line in a process of its own, and the cost of an exchange."""
    for title, cases in SWEEPS.items():
        table = Section(f"Growth of `{method}`: {title}", HEADERS, NOTE)
        for case in cases:
            with process() as fresh:
                table.add([fresh.submit(row, method, *case).result()])
        yield table
    yield exchange()


def exchange() -> Section:
    """Measure how long two processes take to exchange the uploads of two and of ten clients of ``EXCHANGED``."""
    note = (
        "Two processes of one thread with gloo on one machine; each holds the uploads of half the clients of "
        f"{EXCHANGED}."
    )
    table = Section("Exchange between processes", ["active clients", "uploads, MB", "s per exchange", "GB/s"], note)
    for clients in (2, 10):
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn")
        size, taken = fabric.launch(_exchanged, clients)  # type: ignore[arg-type]
        table.add([[clients, size / 1e6, taken, size / taken / 1e9]])
    return table


def _exchanged(fabric: Fabric, clients: int) -> tuple[int, float]:
    torch.set_num_threads(1)
    weights = models.build(EXCHANGED, 10).state_dict()
    mine = [{name: value.clone() for name, value in weights.items()} for _ in range(clients // fabric.world_size)]
    size = clients * sum(value.nbytes for value in weights.values())
    taken = []
    for _ in range(REPEATS + 1):
        fabric.barrier()
        taken.append(seconds(lambda: all_gather(fabric, mine)))
    fabric.barrier()
    return size, statistics.median(taken[1:])
