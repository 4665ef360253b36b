"""Views of resident 8-bit images: cut a window, transform it, normalise it, always for a whole batch.

A `Geometry` lays out all images of a data set once (`prepare`: enlarge or pad, 8 bits kept) and then cuts one randomly
placed window per requested image in a single gather. A `View` is a geometry, optional transforms of the 8-bit windows,
the normalisation, and optional transforms of the normalised batch. Everything but a resize runs on the images' device,
and draws only from the given generator; there is no loop over images.

Padding by the same amount on both sides commutes with mirroring, and a window's position is uniform, so "flip, then
crop" and "crop, then flip" have the same distribution: no geometry distinguishes them. A `FeatureView` takes the place
of a view where a data set has feature vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.common.devices import finished
from datamodules.common.errors import ConfigError, DataError, RunError

Transform = Callable[[Tensor, torch.Generator], Tensor]
"""Maps 8-bit windows uint8 [B, h, w, C] to windows of any size; every image has its own random draw."""

PostTransform = Callable[[Tensor, torch.Generator], Tensor]
"""Maps a normalised batch float32 [B, C, h, w] to the same shape; every image has its own random draw."""

CHUNK_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How windows are cut from a set of images; compared and hashed by value, as a key for prepared images.

    Args:
        border: black pixels that every image gets on each side (28 to 32 with 2).
        side: side of the square that it is then resized to; ``None``: as it is.
        pad: pixels that it then gets on each side.
        mode: what these are: black (``zero``), or mirrored content, the outermost pixel not repeated (``reflect``).
        crop: side of the window that is cut at a uniform position; ``None``: the whole image, without randomness.
        flip: probability with which a window is mirrored; 0 draws no coin.

    Raises:
        ConfigError: the window is larger than the image.
    """

    border: int = 0
    side: int | None = None
    pad: int = 0
    mode: Literal["zero", "reflect"] = "zero"
    crop: int | None = None
    flip: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a window larger than the image."""
        if self.crop and self.side and self.crop > self.side + 2 * self.pad:
            way = f"enlarge to at least {self.crop} (data.zoom), or cut a smaller one (data.side)"
            raise ConfigError(f"a window of {self.crop} does not fit into {self.side}: {way}")

    def prepare(self, images: Tensor) -> Tensor:
        """Lay out uint8 images [N, H, W, 1 or 3] for cutting: uint8 [N, H', W', 3], contiguous, same device.

        One channel becomes three identical ones. Raises `DataError` for others.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise DataError(
                f"expected 8-bit images [N, H, W, 1 or 3], got {images.dtype} {list(images.shape)}; store images "
                "of 0 to 1 as (255 * x).round().astype(np.uint8); feature vectors need data.pipeline=feature_versions "
                "or feature_copies"
            )
        images = zero_pad(images, self.border)
        if self.side is not None:
            images = resize(images, self.side)
        images = zero_pad(images, self.pad) if self.mode == "zero" else reflect_pad(images, self.pad)
        return images.expand(-1, -1, -1, 3).contiguous()

    def __call__(self, prepared: Tensor, index: Tensor, generator: torch.Generator | None) -> Tensor:
        """Cut one window per entry of `index` (int64 [B], positions in `prepared`): uint8 [B, h, w, C].

        All windows are cut in one gather. Draws, in this order, the top edges, the left edges and, unless `flip` is 0,
        the mirror coins. Raises `RunError` if there is something to draw, but no generator.
        """
        side = self.crop
        if side is None:
            return prepared.index_select(0, index)
        generator = _required(generator)
        count, (_, full_height, full_width, channels) = len(index), prepared.shape
        device = prepared.device
        top = torch.randint(full_height - side + 1, (count,), generator=generator, device=device)
        left = torch.randint(full_width - side + 1, (count, 1), generator=generator, device=device)
        column = torch.arange(side, device=device)
        if self.flip > 0:
            mirrored = torch.rand((count, 1), generator=generator, dtype=torch.float32, device=device) < self.flip
            column = torch.where(mirrored, side - 1 - column, column)
        row = (index * full_height + top)[:, None] + torch.arange(side, device=device)
        pixel = (row * full_width)[:, :, None] + (left + column)[:, None, :]
        return prepared.view(-1, channels).index_select(0, pixel.view(-1)).view(count, side, side, channels)


@dataclass(frozen=True)
class View:
    """A geometry, transforms of the 8-bit windows, normalisation, and transforms of the normalised batch.

    `mean` and `std` refer to pixels scaled to [0, 1] and have one value per channel, or one for all channels.
    """

    geometry: Geometry
    mean: tuple[float, ...]
    std: tuple[float, ...]
    transforms: tuple[Transform, ...] = ()
    post: tuple[PostTransform, ...] = ()

    def __call__(self, prepared: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return views of `prepared[index]`: float32 [B, C, h, w] in channels_last memory, (x / 255 - mean) / std.

        `prepared` comes from `geometry.prepare`; `index` is int64 [B]. The generator, on the same device, may be None
        only if there is no randomness (`RunError` otherwise).
        """
        windows = self.geometry(prepared, index, generator)
        for transform in self.transforms:
            windows = transform(windows, _required(generator))
        batch = normalise(windows, self.mean, self.std)
        for transform in self.post:
            batch = transform(batch, _required(generator))
        return batch


@dataclass(frozen=True)
class FeatureView:
    """A choice of the stored versions of each sample's feature vectors; like ``View``, and its own geometry.

    Version 0 is the original sample; the others belong to its distorted copies. If there is more to choose from than
    version 0, one is drawn at every access.

    Args:
        first: first version to choose from.
        end: end of the range of versions (exclusive); ``None``: no limit.
    """

    first: int = 0
    end: int | None = 1

    @property
    def geometry(self) -> "FeatureView":
        """Key of the output of ``prepare``."""
        return self

    def prepare(self, stored: Tensor) -> Tensor:
        """Return all samples' versions to choose from, float [N, V, d] (shares memory with ``stored``).

        Raises:
            DataError: ``stored`` are not feature vectors, or have too few versions.
        """
        least = self.end or self.first + 1
        if stored.ndim != 3 or stored.shape[1] < least:
            found = f"{stored.dtype} {list(stored.shape)}; choose another data.pipeline"
            raise DataError(f"expected feature vectors [N, {least} versions or more, d], got {found}")
        return stored[:, self.first : self.end]

    def __call__(self, prepared: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return feature vectors float [B, d] of samples ``index`` (int64 [B]), with versions drawn by the generator.

        Raises:
            RunError: a version must be drawn, but there is no generator.
        """
        if (self.first, self.end) == (0, 1):
            return prepared[index, 0]
        generator = _required(generator)
        version = torch.randint(prepared.shape[1], index.shape, generator=generator, device=prepared.device)
        return prepared[index, version]


@dataclass(frozen=True)
class Cutout:
    """Zero one square per image of a normalised batch (a `PostTransform`).

    The centre is uniform over the pixels; the square covers [c - size/2, c + size/2) in both axes, clipped at the
    border (the rule of FedDure's released code, where the side is 16).
    """

    size: int

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Return `batch`, float [B, C, h, w], with the squares set to 0."""
        rows = self._covered(batch.shape[0], batch.shape[2], generator)
        columns = self._covered(batch.shape[0], batch.shape[3], generator)
        return batch.clone().masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)

    def _covered(self, count: int, side: int, generator: torch.Generator) -> Tensor:
        centre = torch.randint(side, (count, 1), generator=generator, device=generator.device)
        start = centre - self.size // 2
        pixel = torch.arange(side, device=generator.device)
        return (pixel >= start) & (pixel < start + self.size)


def resize(images: Tensor, size: int) -> Tensor:
    """Resize uint8 images [N, H, W, C] to [N, size, size, C]: bilinear, anti-aliased, in 8 bits.

    Computed on the CPU in fixed-point arithmetic (as in Pillow) whatever the device of `images`, so that every device
    gets the same pixels, and in chunks of `CHUNK_BYTES` to bound memory.
    """
    count, height, width, channels = images.shape
    if (height, width) == (size, size):
        return images
    out = images.new_empty(count, size, size, channels)
    step = max(1, CHUNK_BYTES // (max(height * width, size * size) * channels))
    for start in range(0, count, step):
        chunk = images[start : start + step].cpu().permute(0, 3, 1, 2)
        chunk = F.interpolate(chunk, (size, size), mode="bilinear", antialias=True)
        out[start : start + step] = chunk.permute(0, 2, 3, 1).to(out.device)
    return out


def zero_pad(images: Tensor, pad: int) -> Tensor:
    """Pad uint8 images [N, H, W, C] with `pad` zero pixels per side: [N, H + 2 pad, W + 2 pad, C]."""
    return F.pad(images, (0, 0, pad, pad, pad, pad)) if pad else images


def reflect_pad(images: Tensor, pad: int) -> Tensor:
    """Pad uint8 images [N, H, W, C] with `pad` mirrored pixels per side, border pixel not repeated.

    Returns [N, H + 2 pad, W + 2 pad, C], for H and W above `pad`.
    """
    for axis in (1, 2):
        last = images.shape[axis] - 1
        position = torch.arange(-pad, last + pad + 1, device=images.device).abs()
        images = images.index_select(axis, last - (last - position).abs())
    return images


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Turn uint8 images [B, h, w, C] into (x / 255 - mean) / std: float32 [B, C, h, w], channels_last memory."""
    count, height, width, channels = images.shape
    scale, shift = _scale_shift(mean, std, channels, width, images.device)
    rows = images.reshape(count * height, width * channels).to(torch.float32)
    return rows.mul_(scale).add_(shift).view(count, height, width, channels).permute(0, 3, 1, 2)


@lru_cache(maxsize=64)
def _scale_shift(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    centre, spread = (
        torch.tensor(v, dtype=torch.float64, device=device).expand(channels).repeat(width) for v in (mean, std)
    )
    scale, shift = (1 / (255 * spread)).to(torch.float32), (-centre / spread).to(torch.float32)
    finished(device)
    return scale, shift


def _required(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        raise RunError("random views need a torch.Generator; pass the generator of the client and round")
    return generator
