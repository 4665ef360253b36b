"""Views per second: whole batches on the device against single images with Pillow."""

from collections.abc import Callable
from typing import Any

import torch

from benchmark.perf.federations import Noise
from benchmark.perf.loops import PillowViews
from benchmark.perf.measure import Section, Unit, interleaved
from benchmark.perf.sharpness import STRONG, WEAK
from benchmark.runs.capacity import cores
from datamodules.common.devices import threads

IMAGES, ONE_BY_ONE = 10_240, 1_024
NOTE = (
    f"Images per second, blocks of 1024; Pillow: torchvision's crop, flip, RandAugment, normalisation on {ONE_BY_ONE}."
)


def section() -> list[Section]:
    """Measure weak and strong views of the pipelines on all cores."""
    with threads(cores()):
        table = Section("Augmentation", ["pipeline, view", "images/s", "x Pillow"], NOTE)
        data = {}
        for name in ("zoom_crop_flip", "randaugment_uniform", "randaugment_maximal", "randaugment_levels_cutout"):
            data[name] = Noise(IMAGES, num_clients=1, labelled_clients=1, partition="iid", pipeline=name)
            data[name].setup()

        def cut(pipeline: str, view: str) -> Callable[[], None]:
            generator = torch.Generator().manual_seed(0)

            def unit() -> None:
                for index in torch.split(torch.arange(IMAGES), 1024):
                    data[pipeline].take(view, index, generator)

            return unit

        def one_by_one(view: Any) -> Callable[[], Any]:
            views = PillowViews(data["zoom_crop_flip"].train_images[:ONE_BY_ONE].numpy(), view)
            return lambda: [views[i] for i in range(ONE_BY_ONE)]

        units: dict[str, Unit] = {
            f"{name}, {view}": cut(name, view)
            for name, made in data.items()
            for view in ("weak", "strong")
            if view in made.views
        }
        units |= {"Pillow, weak": one_by_one(WEAK), "Pillow, strong": one_by_one(STRONG)}
        rate = {}
        for name, value in interleaved(units).items():
            rate[name] = (ONE_BY_ONE if name.startswith("Pillow") else IMAGES) / value
        return [table.add([[name, value, value / rate["Pillow, " + name.split()[-1]]] for name, value in rate.items()])]
