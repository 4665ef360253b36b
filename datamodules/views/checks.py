"""Whether the images of a data set suit the options that they are to be seen with."""

from collections.abc import Mapping
from typing import Any

from datamodules.common.errors import ConfigError
from datamodules.common.memory import in_words
from datamodules.io.sources import Arrays
from datamodules.views.augment import Geometry
from datamodules.views.pipelines import Views


def layout_bytes(arrays: Arrays, views: Views) -> int:
    """What the images take in memory, laid out for the largest of the views: training and test images once each."""
    geometries = {name: view.geometry for name, view in views.items() if isinstance(view.geometry, Geometry)}
    needed = 0
    for images, names in ((arrays.train_images, set(geometries) - {"test"}), (arrays.test_images, {"test"})):
        if images.ndim == 4:
            extents = [geometries[name].extent(*images.shape[1:3]) for name in names & set(geometries)]
            needed += len(images) * 3 * max((height * width for height, width in extents), default=0)
    return needed


def check_border(arrays: Arrays, border: int, side: int, needed: int) -> None:
    """Refuse a border that does not lead to the network's input, a square of ``side`` pixels.

    Raises:
        ConfigError: says what it leads to, and to how many bytes (``needed``).
    """
    for part, images in (("training", arrays.train_images), ("test", arrays.test_images)):
        framed = [length + 2 * border for length in images.shape[1:3]]
        if images.ndim == 4 and framed != [side, side]:
            raise ConfigError(
                f"data.border={border} makes {part} images of {framed[0]} x {framed[1]} pixels, {in_words(needed)} "
                f"of memory in all, but the network takes {side} x {side}: choose the border that leads there, "
                "another --data.side, or no border"
            )


def check_memory(name: str, asked: Mapping[str, Any], needed: int, free: int | None, processes: int) -> None:
    """Refuse images that are too large for the memory.

    Args:
        name: of the data set.
        asked: the options that make images large, by name.
        needed: bytes in each process.
        free: bytes in all; ``None`` where nobody knows.
        processes: how many lay the images out.

    Raises:
        ConfigError: says what the images would take, and what there is.
    """
    if free is None or needed * processes <= free:
        return
    options = ", ".join(f"data.{option}={value}" for option, value in asked.items()) or name
    times = f" in each of {processes} processes" if processes > 1 else ""
    fewer = ", or fewer --devices" if processes > 1 else ""
    raise ConfigError(
        f"{options}: the images of {name} would take {in_words(needed)} of memory{times}, and {in_words(free)} are "
        f"free; choose smaller images{fewer}"
    )


def check_grey(name: str, arrays: Arrays) -> None:
    """Refuse one channel of coloured images.

    Raises:
        ConfigError: says what the option is for.
    """
    for images in (arrays.train_images, arrays.test_images):
        for start in range(0, len(images) if images.ndim == 4 else 0, 256):
            some = images[start : start + 256]
            if (some != some[..., :1]).any():
                raise ConfigError(f"data.channels=1 is for grey images, and some of {name} are coloured: leave it out")
