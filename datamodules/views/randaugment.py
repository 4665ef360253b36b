"""RandAugment for whole batches: every image draws `n` operations, and each kind runs up to `n` times per batch.

A `RandAugment` lists operations (`pixelops.OPS`) and how their magnitudes are drawn; those below but `AFFINE` are of
the papers' released codes. Lengths are fractions of the side, so a pool means the same at every resolution; pixel
numbers in the papers refer to 32 x 32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from datamodules.views.pixelops import GREY, OPS, affine, box, constant

Law = Callable[[Tensor, Tensor], Tensor]
"""Maps two independent uniform draws from [0, 1), float64 [b] each, to the magnitudes of an `Op`."""


@dataclass(frozen=True)
class Uniform:
    """A magnitude drawn uniformly between `low` and `high`."""

    low: float
    high: float

    def __call__(self, u: Tensor, coin: Tensor) -> Tensor:
        """Magnitudes float64 [b]."""
        return self.low + (self.high - self.low) * u


@dataclass(frozen=True)
class Levels:
    """A magnitude drawn uniformly from `values`, with a random sign if `signed`, added to `around`."""

    values: tuple[float, ...]
    signed: bool = False
    around: float = 0.0

    def __call__(self, u: Tensor, coin: Tensor) -> Tensor:
        """Magnitudes float64 [b]."""
        magnitude = constant(self.values, u.device)[(u * len(self.values)).to(torch.int64)]
        return self.around + (torch.where(coin < 0.5, -magnitude, magnitude) if self.signed else magnitude)


def large_box(u: Tensor, coin: Tensor) -> Tensor:
    """A `box` of 40 / 32 image sides, centred uniformly over the image: float64 [b, 3]."""
    return torch.stack((u, coin, torch.full_like(u, 40 / 32)), 1)


@dataclass(frozen=True)
class RandomBox:
    """A box painted on every image (a `Transform`).

    Its side is uniform between `smallest` and `largest`, its centre uniform from `first` to 1 in both axes,
    all in image sides.
    """

    smallest: float
    largest: float
    paint: tuple[int, int, int]
    first: float = 0.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Paint uint8 images [B, h, w, 3]."""
        u = torch.rand(len(images), 3, generator=generator, dtype=torch.float64, device=images.device)
        start = constant((self.first, self.first, self.smallest), images.device)
        end = constant((1.0, 1.0, self.largest), images.device)
        return box(images, start + (end - start) * u, self.paint)


@dataclass(frozen=True)
class RandAugment:
    """Apply `n` of equally likely operations to every image, drawn with replacement (a `Transform`).

    `laws` lists the operations by the distribution of their magnitude. A drawn operation is executed with probability
    `execution`. With `caps`, every image first draws one cap c, and its `Levels` then use only their first c values.
    `last` is painted on every image afterwards.
    """

    laws: tuple[tuple[Law, tuple[str, ...]], ...]
    n: int = 2
    execution: float = 1.0
    caps: tuple[int, ...] = ()
    last: RandomBox | None = None

    @property
    def entries(self) -> list[tuple[str, Law]]:
        """Return every operation with its magnitude distribution, in the order of their numbers."""
        return [(name, law) for law, names in self.laws for name in names]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images [B, h, w, 3]."""
        entries, count, device = self.entries, len(images), images.device
        shape = (3, self.n, count)
        u, coin, chance = torch.rand(shape, generator=generator, dtype=torch.float64, device=device).unbind()
        choice = torch.randint(len(entries), (self.n, count), generator=generator, device=device)
        if caps := self.caps:
            cap = torch.randint(len(caps), (count,), generator=generator, device=device)
            u = u * (constant(caps, device) / max(caps))[cap]
        choice = torch.where(chance < self.execution, choice, len(entries))
        order = choice.argsort(1)
        sizes = (choice[:, :, None] == torch.arange(len(entries) + 1, device=device)).sum(1).tolist()
        place = torch.arange(count, device=device)  # of each image in `images`
        for slot in range(self.n):
            rows = order[slot]
            images = self.operate(images.index_select(0, place[rows]), u[slot, rows], coin[slot, rows], sizes[slot])
            place = rows.argsort()
        images = images.index_select(0, place)
        return images if self.last is None else self.last(images, generator)

    def operate(self, images: Tensor, u: Tensor, coin: Tensor, sizes: list[int]) -> Tensor:
        """Apply an operation to every image.

        Args:
            images: uint8 [B, h, w, 3], sorted by operation; those without one are last.
            u: draws for their magnitudes, [B].
            coin: likewise.
            sizes: number of images of each operation, and of those without one.
        """
        names, magnitudes = list[str](), list[Tensor]()
        for law, operations in self.laws:
            counts = sizes[len(names) : len(names) + len(operations)]
            first = sum(sizes[: len(names)])
            rows = slice(first, first + sum(counts))
            names += operations
            magnitudes += torch.split(law(u[rows], coin[rows]), counts)
        *parts, unchanged = torch.split(images, sizes)
        drawn = zip(names, parts, magnitudes, strict=True)
        calls: list[tuple[Any, Tensor, Tensor]] = [(OPS[name], part, v) for name, part, v in drawn if len(part)]
        done = []
        for fill, group in groupby(calls, lambda call: getattr(call[0], "fill", None)):
            if fill is None:
                done += [op(part, v) for op, part, v in group]
            else:  # warps run together
                warps = list(group)
                maps = torch.cat([warp.maps(v, *images.shape[1:3]) for warp, _, v in warps])
                done.append(affine(torch.cat([part for _, part, _ in warps]), maps, fill))
        return torch.cat([*done, unchanged])


_NONE = Levels((0.0,))
_LEVELS = range(1, 10)
_GRID = [step / 9 for step in range(5)]
_ENHANCE = ("brightness", "colour", "contrast", "sharpness")
_SHEAR = ("shear_x", "shear_y")
_TRANSLATE = ("translate_x", "translate_y")

FIXMATCH_UNIFORM = RandAugment(
    n=3,
    laws=(
        (_NONE, ("autocontrast", "equalize", "identity")),
        (Uniform(0.05, 0.95), _ENHANCE),
        (Uniform(4, 8), ("posterize",)),
        (Uniform(0, 256), ("solarize",)),
        (Uniform(-30, 30), ("rotate",)),
        (Uniform(-0.3, 0.3), _SHEAR + _TRANSLATE),
    ),
    last=RandomBox(0.0, 0.5, paint=(125, 123, 114), first=1 / 32),
)
"""Continuous magnitudes, always executed, then a box of up to half the side ((FL)2, released code).

The box centre starts at pixel 1 of 32, not 0, in the released code.
"""

MAXIMAL = RandAugment(
    laws=(
        (_NONE, ("autocontrast", "equalize", "invert")),
        (Levels((1.9,)), _ENHANCE),
        (Levels((4,)), ("posterize",)),
        (Levels((0,)), ("solarize",)),
        (Levels((30,), signed=True), ("rotate",)),
        (Levels((0.3,), signed=True), ("linear_shear_x", "linear_shear_y")),
        (Levels((100 / 32,), signed=True), _TRANSLATE),
        (large_box, ("grey_box",)),
    ),
    execution=0.5,
)
"""Maximal magnitudes, no final box (SemiFL and FedDB, released code).

The released code draws an execution probability from U(0.2, 0.8) for every operation and uses it once, which is
equivalent to probability 1/2.
"""

FIXMATCH_LEVELS = RandAugment(
    laws=(
        (_NONE, ("autocontrast", "equalize", "identity")),
        (Levels(tuple(0.09 * v + 0.05 for v in _LEVELS)), _ENHANCE),
        (Levels(tuple(int(0.4 * v) + 4 for v in _LEVELS)), ("posterize",)),
        (Levels(tuple(256 - int(25.6 * v) for v in _LEVELS)), ("solarize",)),
        (Levels(tuple(3 * v for v in _LEVELS), signed=True), ("rotate",)),
        (Levels(tuple(0.03 * v for v in _LEVELS), signed=True), _SHEAR),
        (Levels(tuple(int(0.03 * v * 32) / 32 for v in _LEVELS), signed=True), _TRANSLATE),
    ),
    execution=0.5,
    last=RandomBox(0.5, 0.5, paint=GREY),
)
"""Levels 1 to 9, each operation executed with probability 1/2, then a box (FedDure and FedRGD)."""

AFFINE = RandAugment(
    laws=(
        (Uniform(-30, 30), ("rotate",)),
        (Uniform(-0.3, 0.3), _SHEAR),
        (Uniform(-0.125, 0.125), _TRANSLATE),
    ),
)
"""Affine operations alone, always executed (ours): on tiny images a painted box hides most of the object."""

GRID_LEVELS = RandAugment(
    n=6,
    laws=(
        (_NONE, ("autocontrast", "identity")),
        (Levels(tuple(0.3 * t for t in _GRID), signed=True, around=1), ("brightness",)),
        (Levels(tuple(0.5 * t for t in _GRID), signed=True, around=1), ("contrast",)),
        (Levels(tuple(0.9 * t for t in _GRID), signed=True, around=1), ("colour", "sharpness")),
        (Levels(tuple(round(8 - 4 * t) for t in _GRID)), ("posterize",)),
        (Levels(tuple(256 - 25 * t for t in _GRID)), ("solarize",)),
        (Levels(tuple(360 * t for t in _GRID)), ("rotate_on_grey",)),
        (Levels(tuple(0.3 * t for t in _GRID), signed=True), ("cubic_shear_x", "cubic_shear_y")),
        (Levels(tuple(0.2 * t for t in _GRID), signed=True), _TRANSLATE),
    ),
    caps=(2, 3, 4, 5),
)
"""The low end of a ten-step grid, always executed (FedMatch, released code).

There, equalize is the identity, rotation leaves grey corners, and shears are cubic.
"""
