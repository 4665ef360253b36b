"""Checks that what a data set has read suits its class and the options of its views."""

import math
from typing import Any

import torch

from datamodules.common.errors import ConfigError
from datamodules.common.memory import available_bytes, in_words
from datamodules.io.sources import Arrays
from datamodules.views.pipelines import Views


def check_arrays(data: Any, arrays: Arrays) -> None:
    """Refuse what a data module has read if it does not suit the options of its views.

    Raises:
        ConfigError: the images do not fit into memory; with a border they are not of the network's side; or they have
            colour, and the network is to see one channel.
    """
    name, h = type(data).__name__, data.hparams
    large = "".join(f", data.{option}={h[option]}" for option in ("side", "zoom") if h[option])
    free = torch.cuda.mem_get_info(data.device)[0] if data.device.type == "cuda" else available_bytes()
    check_memory(f"{name}{large}", layout_bytes(arrays, data.views), free, data.processes)
    for part, images in (("training", arrays.train_images), ("test", arrays.test_images)):
        check_images(data, part, images)


def check_images(data: Any, part: str, images: Any) -> None:
    """Refuse images ``[N, H, W, C]`` that do not suit the options of a data module's views.

    Raises:
        ConfigError: see ``check_arrays``.
    """
    h, side = data.hparams, data.image_size
    framed = [length + 2 * h.border for length in images.shape[1:3]]
    if h.border and images.ndim == 4 and framed != [side, side]:
        raise ConfigError(
            f"data.border={h.border} makes {part} images of {framed[0]} x {framed[1]} pixels; the network takes "
            f"{side} x {side}: choose another one, or --data.side"
        )
    if h.channels == 1 and images.ndim == 4 and (images != images[..., :1]).any():
        raise ConfigError(f"data.channels=1 is for grey images, but some {part} images have colour: leave it out")


def layout_bytes(arrays: Arrays, views: Views) -> int:
    """Compute the bytes of training and test images, laid out for every view."""
    needed = 0
    for images, names in ((arrays.train_images, views.keys() - {"test"}), (arrays.test_images, {"test"})):
        none = torch.from_numpy(images[:0])
        layouts = {views[name].geometry for name in names} if images.ndim == 4 else set()
        needed += len(images) * sum(math.prod(layout.prepare(none).shape[1:]) for layout in layouts)
    return needed


def check_memory(name: str, needed: int, free: int | None, processes: int = 1) -> None:
    """Refuse images that do not fit into memory.

    Args:
        name: the data set, and perhaps the options that make its images large.
        needed: bytes per process.
        free: available bytes; ``None`` if unknown.
        processes: number of processes that hold the images.

    Raises:
        ConfigError: gives the needed and the available memory.
    """
    if free is None or needed * processes <= free:
        return
    times, fewer = (f" in each of {processes} processes", ", or fewer --devices") if processes > 1 else ("", "")
    raise ConfigError(
        f"{name}: the images would take {in_words(needed)} of memory{times}, and {in_words(free)} are free; choose "
        f"smaller ones{fewer}"
    )
