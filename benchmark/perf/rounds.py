"""Whole rounds of federated averaging: processes x threads; huge partitions."""

import statistics
from functools import partial

import numpy as np
import torch
from lightning import Fabric

from benchmark.launch.process import keep_memory
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Section, seconds
from benchmark.runs.capacity import cores
from datamodules.common.devices import threads
from datamodules.partition import split

REPEATS = 3
SHAPES = (  # network, clients (None: one per core), images per round
    ("small_cnn", 10, 50_000),
    ("small_cnn", None, 25_000),
    ("resnet18", None, 2_000),
    ("resnet9", None, 400),
    ("wrn28_2", None, 400),
)


def _timed(fabric: Fabric, count: int, method: str, model: str, images: int, clients: int) -> float:
    torch.set_num_threads(count)
    keep_memory()
    data = Noise(images, num_clients=clients, labelled_clients=clients, partition="iid")
    made = federation(method, data, model, fabric=fabric)
    made.method.views = {"labelled": {"x": "test"}}
    taken = []
    for number in range(REPEATS + 1):
        fabric.barrier()
        taken.append(seconds(partial(made.run_round, number)))
    fabric.barrier()
    return statistics.median(taken[1:])


def seconds_per_round(processes: int, count: int, method: str, model: str, images: int, clients: int) -> float:
    """Median seconds of a round of ``images`` over ``clients``, with ``count`` threads per process."""
    fabric = Fabric(accelerator="cpu", devices=processes, strategy="ddp_spawn" if processes > 1 else "auto")
    return float(fabric.launch(_timed, count, method, model, images, clients))  # type: ignore[arg-type]


def layouts(method: str) -> list[Section]:
    """Measure a round with one process on all cores, and with one single-threaded process per core."""
    n = cores()
    choices = [(1, 1)] if n == 1 else [(1, 1), (1, n), (n, 1)]
    headers = ["network", "clients", "images", *(f"{p} process{'es' * (p > 1)} x {t} thr." for p, t in choices)]
    note = "Seconds per round of one local epoch in batches of 64, without augmentation or evaluation; not interleaved."
    with threads(n):
        table = Section(f"Rounds of `{method}`: processes x threads", headers, note)
        for network, fixed, images in SHAPES:
            clients = fixed or n
            taken = [seconds_per_round(p, t, method, network, images, clients) for p, t in choices]
            table.add([[network, clients, images, *taken]])
    return [table]


def partitions() -> list[Section]:
    """Measure the time of huge partitions."""
    table = Section("Partitions", ["clients", "split", "seconds"], "1 000 000 images of 10 classes.")
    labels = np.arange(1_000_000) % 10
    for n in (1_000, 10_000, 100_000):
        rng = np.random.RandomState(0)
        iid = seconds(partial(split.iid, labels, n, rng=rng))
        dirichlet = seconds(partial(split.dirichlet, labels, n, 0.5, rng, min_size=0))
        table.add([[n, "iid", iid], [n, "dirichlet 0.5", dirichlet]])
    return [table]
