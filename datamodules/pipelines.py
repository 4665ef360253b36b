"""Named image pipelines: which views a data set offers, by the operations they are made of."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmark.errors import ConfigError
from datamodules.augment import Geometry, PadCrop, Resize, View, ZoomCrop


@dataclass(frozen=True)
class Look:
    """What a pipeline needs to know of a data set.

    Args:
        size: side of the network's input.
        zoom: side that images are enlarged to before a window of ``size`` is cut (zoom pipelines).
        flip: probability of a horizontal flip.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
    """

    size: int
    zoom: int
    flip: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def view(self, geometry: Geometry, transforms: tuple = (), post: tuple = ()) -> View:  # type: ignore[type-arg]
        """A view with this normalisation."""
        return View(geometry, transforms=transforms, post=post, mean=self.mean, std=self.std)

    @property
    def plain(self) -> View:
        """No randomness: resized where the stored images have another size."""
        return self.view(Resize(self.size, channels=3))


Pipeline = Callable[[Look], dict[str, View]]


def zoom_crop_flip(look: Look) -> dict[str, View]:
    """Enlarge, cut a window without padding, flip; test images are not enlarged (RSCFed, CBAFed)."""
    return {"weak": look.view(ZoomCrop(look.zoom, look.size, look.flip, channels=3)), "test": look.plain}


def pad_crop_flip(look: Look) -> dict[str, View]:
    """Cut a window out of the image with 4 reflected pixels around it, flip."""
    base = Resize(look.size)
    return {"weak": look.view(PadCrop(4, "reflect", look.flip, base=base, channels=3)), "test": look.plain}


PIPELINES: dict[str, Pipeline] = {"zoom_crop_flip": zoom_crop_flip, "pad_crop_flip": pad_crop_flip}


def views(name: str, look: Look) -> dict[str, View]:
    """The views of the pipeline ``name``; always has ``weak`` and ``test``.

    Raises:
        ConfigError: no such pipeline.
    """
    if name not in PIPELINES:
        raise ConfigError(f"unknown pipeline {name!r}; choose one of {', '.join(sorted(PIPELINES))}")
    return PIPELINES[name](look)
