"""Federations over random images, timing in processes of their own, tables that name their machine."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import torch
from lightning import Fabric

from benchmark.config import Run, RunConfig
from benchmark.federation.assembly import assemble
from benchmark.federation.loop import Federation
from benchmark.launch.worker import enough_queues, keep_memory
from benchmark.registry import ClassSpec
from benchmark.runs.code_identity import code_version
from benchmark.runs.environment import cores, cpu_model
from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays


class Noise(FSSLDataModule):
    """Random images of CIFAR's shape, since speed does not depend on content.

    Args:
        images: training images.
        pixels: side of the images.
        base: see ``FSSLDataModule``.
    """

    num_classes = 10
    mean = (0.507, 0.487, 0.441)
    std = (0.267, 0.256, 0.276)

    def __init__(self, images: int, pixels: int = 32, **base: Any) -> None:
        super().__init__(**base)
        self.images, self.pixels = images, pixels

    def read(self) -> Arrays:
        """Return fixed random pixels, and the classes in turn; as many test images, up to 10 000."""
        rng, test = np.random.RandomState(0), min(self.images, 10_000)
        pixels = rng.randint(0, 256, (self.images + test, self.pixels, self.pixels, 3), np.uint8)
        labels = np.arange(len(pixels)) % self.num_classes
        names = tuple(map(str, range(self.num_classes)))
        return Arrays(pixels[test:], labels[test:], pixels[:test], labels[:test], names, {})


def config_of(method: str, options: dict[str, Any], data: dict[str, Any], **config: Any) -> RunConfig:
    """Configure many rounds over ``Noise``, split evenly, evaluated only after the last.

    Args:
        method: name of the method.
        options: its arguments.
        data: arguments of ``Noise``.
        config: further fields of ``RunConfig``.
    """
    spec = ClassSpec(f"{Noise.__module__}.{Noise.__qualname__}", {"partition": "iid", **data})
    norm = {"norm": "batch"} if str(config.get("model")).startswith("wrn") else {}  # FedAvg measures no static ones
    more = {"rounds": 10_000, "eval_every": 10_000, "model_args": norm, **config}
    return RunConfig(ClassSpec(method, options), spec, **more)


def federation_of(config: RunConfig, device: str = "cpu", slots: int | None = None, replay: bool = True) -> Federation:
    """Create the federation of a run.

    Args:
        config: of the run.
        device: ``cpu`` or ``cuda``.
        slots: number of interleaved clients; default: the reference engine.
        replay: whether slots record and replay their steps.
    """
    runtime = replace(config.runtime, engine="slots" if slots else "reference", slots=slots or 1, replay=replay)
    run = Run.of(replace(config, runtime=runtime))
    enough_queues()
    fabric = Fabric(accelerator=device, devices=1, precision=config.precision)  # type: ignore[arg-type]
    fabric.launch()
    return assemble(run, fabric)


class Section:
    """A table of measurements that grows line by line.

    Args:
        title: title of the table.
        headers: column names.
        note: explanation below the table.
    """

    def __init__(self, title: str, headers: Sequence[str], note: str) -> None:
        self.title, self.headers, self.note = title, headers, note
        self.rows: list[list[Any]] = []

    def add(self, row: Sequence[Any]) -> "Section":
        """Append a line, padded if needed; return the section."""
        self.rows.append([*row, *[""] * (len(self.headers) - len(row))])
        return self

    def text(self) -> str:
        """Format the table as Markdown, with machine, code, day; floats have three digits, from 100 on no decimals."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        machine = f"{cpu_model()}, {cores()} cores, {gpu}, torch {torch.__version__}, code {code_version()}"
        lines = [self.headers, ["---"] * len(self.headers), *(map(_shown, row) for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n\n{table}\n\n{self.note} ({date.today()}; {machine})\n"


def seconds(unit: Callable[..., Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    unit()
    return time.perf_counter() - start


def alone(task: Callable[..., Any], *args: Any, threads: int | None = None, allowed: float | None = None) -> Any:
    """Run a task in a process of its own, so that what it leaves, breaks or forgets costs others nothing.

    Args:
        task: function, importable by name.
        args: its arguments.
        threads: threads of torch; default: torch's own choice.
        allowed: time limit in seconds.

    Raises:
        Exception: whatever it raised; ``TimeoutError`` if it exceeded the limit, ``BrokenProcessPool`` if it ended the
            process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.perf.gpu"])
    pool = ProcessPoolExecutor(1, context, prepare, (threads,))
    try:
        return pool.submit(task, *args).result(allowed)
    finally:
        for process in pool._processes.values():
            process.kill()
        pool.shutdown()


def prepare(threads: int | None) -> None:
    """Set up the process of a task."""
    keep_memory()
    if threads is not None:
        torch.set_num_threads(threads)


def _shown(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
