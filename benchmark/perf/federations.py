"""Federations over random images, since speed does not depend on content."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning import Fabric

from benchmark.config import Run
from benchmark.federation.assembly import assemble, make
from benchmark.federation.loop import Federation
from benchmark.federation.scaling import fabric_precision
from benchmark.launch.process import enough_queues
from benchmark.registry import KINDS, find_class
from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays
from methods import models


class Noise(FSSLDataModule):
    """Random images of CIFAR's shape.

    Args:
        images: training images.
        classes: number of classes.
        pixels: side of the images.
        base: see ``FSSLDataModule``.
    """

    mean = (0.507, 0.487, 0.441)
    std = (0.267, 0.256, 0.276)

    def __init__(self, images: int, classes: int = 10, pixels: int = 32, **base: Any) -> None:
        self.num_classes = classes
        super().__init__(**base)
        self.images, self.pixels = images, pixels

    def read(self) -> Arrays:
        """Return fixed random pixels and labels; as many test images, up to 10 000."""
        rng, test = np.random.RandomState(0), min(self.images, 10_000)
        pixels = rng.randint(0, 256, (self.images + test, self.pixels, self.pixels, 3), np.uint8)
        labels = np.arange(len(pixels)) % self.num_classes
        names = tuple(map(str, range(self.num_classes)))
        return Arrays(pixels[test:], labels[test:], pixels[:test], labels[:test], names, {})


def federation(
    method: str,
    data: FSSLDataModule,
    model: str = "small_cnn",
    fabric: Fabric | None = None,
    participants: int | None = None,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> Federation:
    """Create a federation of many rounds that is evaluated only after the last, with its data set up.

    Args:
        method: name of the method.
        data: the data.
        model: name of the network.
        fabric: a launched Fabric; default: one process on the CPU.
        participants: clients per round; default: all.
        engine: further arguments of ``Federation``; default: the reference engine.
        options: arguments of the method.
    """
    fabric = fabric or launched()
    data.place(fabric.device, torch.float32)
    data.setup()
    network = models.build(model, data.num_classes, image_size=data.image_size)
    made = find_class(method, KINDS["method"])(network, **options)
    roster = data.roster(0, participants)
    return Federation(made, data, roster, fabric, rounds=10_000, seed=0, eval_every=10_000, **(engine or {}))


def federation_of(
    run: Run, device: str, slots: int | None = None, replay: bool = True, same_views: bool = False
) -> Federation:
    """Create the federation of a run.

    Args:
        run: the run.
        device: ``cpu`` or ``cuda``.
        slots: number of interleaved clients; default: the reference engine.
        replay: whether slots record and replay their steps.
        same_views: give every image the same view at all times.
    """
    runtime = replace(run.config.runtime, engine="slots" if slots else "reference", slots=slots or 1, replay=replay)
    run, fabric = run.replace(runtime=runtime), launched(device, run.config.precision)
    made, data = make(run, fabric.device)
    if same_views:
        data.views = dict.fromkeys(data.views, data.views["test"])
    return assemble(run, made, data, fabric)


def launched(device: str = "cpu", precision: Any = "32-true") -> Fabric:
    """Launch one process on a device (``cpu`` or ``cuda``)."""
    enough_queues()
    fabric = Fabric(accelerator=device, devices=1, **fabric_precision(precision, device))
    fabric.launch()
    return fabric


@contextmanager
def arithmetic(name: str) -> Iterator[Any]:
    """Set a precision by its Fabric name or ``tf32``, while the context is open.

    ``tf32`` is single precision with TF32 in matrix products and convolutions. All others compute as runs do, with
    PyTorch's defaults.
    """
    if name != "tf32":
        yield name
        return
    with tensor_cores(True):
        yield "32-true"


@contextmanager
def tensor_cores(on: bool) -> Iterator[None]:
    """Switch TF32 in matrix products and convolutions on or off while the context is open."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def synchronize(device: str) -> None:
    """Wait for a GPU to finish."""
    if device == "cuda":
        torch.cuda.synchronize()
