"""Interleaved timings of the engine, the bare loop and the released way of working, with a probe of the machine."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from lightning import Fabric
from tabulate import tabulate

from benchmark.allocator import keep_memory
from benchmark.classes import KINDS, find_class
from benchmark.environment import cores, cpu_model
from benchmark.federation import Federation
from benchmark.perf import loops
from datamodules.base import FSSLDataModule
from datamodules.sources import Arrays
from methods import models

IMAGES, CLASSES, REPEATS = 5_000, 100, 5


class Noise(FSSLDataModule):
    """Random images of CIFAR-100's shape, two clients of 5 000: speed does not depend on what they show."""

    num_classes = CLASSES
    mean = (0.507, 0.487, 0.441)
    std = (0.267, 0.256, 0.276)

    def read(self) -> Arrays:
        """Fixed random pixels and labels."""
        rng = np.random.RandomState(0)
        pixels = rng.randint(0, 256, (2 * IMAGES + 100, 32, 32, 3), np.uint8)
        labels = np.arange(len(pixels)) % CLASSES
        names = tuple(map(str, range(CLASSES)))
        return Arrays(pixels[:-100], labels[:-100], pixels[-100:], labels[-100:], names, {})


def probe() -> float:
    """GFLOP/s of a 1536 x 1536 matrix product: how quiet the machine is."""
    a = torch.randn(1536, 1536)
    a @ a
    start = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * 1536**3 / (time.perf_counter() - start) / 1e9


def interleaved(units: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each unit, run in turn ``REPEATS`` times after one warm-up turn."""
    seconds: dict[str, list[float]] = {name: [] for name in units}
    for turn in range(REPEATS + 1):
        for name, unit in units.items():
            start = time.perf_counter()
            unit()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def epochs(name: str) -> dict[str, dict[str, float]]:
    """One local epoch of 5 000 images on the small CNN: unlabelled (mean teacher) and labelled."""
    data = Noise(num_clients=2, partition="iid")
    data.setup()
    method = find_class(name, KINDS["method"])(models.build("small_cnn", CLASSES), warmup_rounds=0)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    federation = Federation(method, data, data.roster(0), fabric, rounds=1, seed=0)
    labelled, unlabelled = federation.visits(0)
    model, teacher = (models.build("small_cnn", CLASSES) for _ in range(2))
    teacher.requires_grad_(False)
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    index = {
        kind: getattr(data.client(v.client), kind) for kind, v in (("labelled", labelled), ("unlabelled", unlabelled))
    }
    geometry = data.views["weak"].geometry
    zoomed = {kind: geometry.prepare(data._train[i]) for kind, i in index.items()}
    images, labels = data._train[index["unlabelled"]].numpy(), data.client(labelled.client).labels
    return {
        "unlabelled client, one epoch": interleaved(
            {
                "engine": lambda: federation.engine.client(unlabelled, federation.server, None),
                "bare loop": lambda: loops.bare_epoch(model, teacher, zoomed["unlabelled"], mean, std, 0.001),
                "released style": lambda: loops.released_epoch(model, teacher, images, mean, std),
            }
        ),
        "labelled client, one epoch": interleaved(
            {
                "engine": lambda: federation.engine.client(labelled, federation.server, None),
                "bare loop": lambda: loops.bare_supervised(model, zoomed["labelled"], labels, mean, std),
            }
        ),
    }


def main() -> None:
    """Print the table; nothing here is a test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", help="the mean-teacher method whose step the bare loop repeats")
    arguments = parser.parse_args()
    keep_memory()
    for threads in sorted({1, cores()}):
        torch.set_num_threads(threads)
        before, rows = probe(), []
        for unit, seconds in epochs(arguments.method).items():
            for name, value in seconds.items():
                rows.append([unit, name, value, IMAGES / value, value / seconds["bare loop"]])
        print(f"\n{cpu_model()}, {threads} of {cores()} cores; probe {before:.0f} -> {probe():.0f} GFLOP/s")
        print(
            tabulate(
                rows, ["unit", "loop", "seconds", "images/s", "x bare loop"], floatfmt=("", "", ".3f", ".0f", ".2f")
            )
        )


if __name__ == "__main__":
    main()
