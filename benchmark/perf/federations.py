"""Federations over random images, since speed does not depend on content."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning import Fabric

from benchmark.config import Run, RunConfig
from benchmark.federation.assembly import assemble, make
from benchmark.federation.loop import Federation
from benchmark.federation.scaling import fabric_precision
from benchmark.launch.process import enough_queues
from benchmark.registry import ClassSpec
from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays


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


NOISE = f"{Noise.__module__}.{Noise.__qualname__}"


def config_of(method: str, options: dict[str, Any], data: dict[str, Any], **config: Any) -> RunConfig:
    """Configure many rounds over ``Noise``, split evenly, evaluated only after the last.

    Args:
        method: name of the method.
        options: its arguments.
        data: arguments of ``Noise``.
        config: further fields of ``RunConfig``.
    """
    spec = ClassSpec(NOISE, {"partition": "iid", **data})
    return RunConfig(ClassSpec(method, options), spec, **{"rounds": 10_000, "eval_every": 10_000, **config})


def federation_of(
    config: RunConfig, device: str = "cpu", slots: int | None = None, replay: bool = True, same_views: bool = False
) -> Federation:
    """Create the federation of a run.

    Args:
        config: of the run.
        device: ``cpu`` or ``cuda``.
        slots: number of interleaved clients; default: the reference engine.
        replay: whether slots record and replay their steps.
        same_views: give every image the same view at all times.
    """
    runtime = replace(config.runtime, engine="slots" if slots else "reference", slots=slots or 1, replay=replay)
    run = Run.of(replace(config, runtime=runtime))
    enough_queues()
    fabric = Fabric(accelerator=device, devices=1, **fabric_precision(config.precision, device))
    fabric.launch()
    made, data = make(run, fabric.device)
    if same_views:
        data.views = dict.fromkeys(data.views, data.views["test"])
    return assemble(run, made, data, fabric)


def synchronize(device: str) -> None:
    """Wait for a GPU to finish."""
    if device == "cuda":
        torch.cuda.synchronize()
