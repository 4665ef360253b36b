"""Views per second: whole batches on the device against single images with Pillow."""

from collections.abc import Callable

import torch

from benchmark.perf.federations import Noise
from benchmark.perf.measure import Section, Unit, interleaved, probe, threads
from benchmark.perf.sharpness import PillowViews
from benchmark.runs.environment import cores

IMAGES, ONE_BY_ONE = 10_240, 1_024
NOTE = (
    f"Images per second, blocks of 1024; Pillow: torchvision's crop, flip, RandAugment, normalisation on {ONE_BY_ONE}."
)


def section() -> list[Section]:
    """Measure weak and strong views of the pipelines on all cores."""
    with threads(cores()):
        before, data = probe(), {}
        for name in ("zoom_crop_flip", "randaugment_uniform", "randaugment_maximal", "randaugment_levels_cutout"):
            data[name] = Noise(IMAGES, num_clients=1, labelled_clients=1, partition="iid", pipeline=name)
            data[name].setup()

        def cut(pipeline: str, view: str) -> Callable[[], None]:
            generator = torch.Generator().manual_seed(0)

            def unit() -> None:
                for index in torch.split(torch.arange(IMAGES), 1024):
                    data[pipeline].take(view, index, generator)

            return unit

        views = PillowViews(data["zoom_crop_flip"].train_images[:ONE_BY_ONE].numpy())
        units: dict[str, Unit] = {
            f"{name}, {view}": cut(name, view)
            for name, made in data.items()
            for view in ("weak", "strong")
            if view in made.views
        }
        units["Pillow, weak"] = lambda: [views.weak(image) for image in views.images]
        units["Pillow, strong"] = lambda: [views.strong(image) for image in views.images]
        rate = {}
        for name, value in interleaved(units).items():
            rate[name] = (ONE_BY_ONE if name.startswith("Pillow") else IMAGES) / value
        rows = [[name, value, value / rate["Pillow, " + name.rpartition(" ")[2]]] for name, value in rate.items()]
        return [Section("Augmentation", ["pipeline, view", "images/s", "x Pillow"], rows, NOTE, (before, probe()))]
