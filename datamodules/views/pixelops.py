"""Pillow's pixel operations for whole batches of 8-bit images, one magnitude per image.

Each reproduces Pillow's 8-bit arithmetic (truncation, fixed-point coordinates, copied borders) on the batch's device,
without a loop over images. Lengths are fractions of the side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from datamodules.common.devices import finished

Op = Callable[[Tensor, Tensor], Tensor]
"""Maps images uint8 [b, h, w, 3] and magnitudes float64 [b] (boxes: [b, 3]) to images of the same shape."""


def solarize(images: Tensor, v: Tensor) -> Tensor:
    """Invert the values that are at least `v`."""
    return torch.where(images < _per_image(v.ceil().to(torch.int16)), images, 255 - images)


def posterize(images: Tensor, v: Tensor) -> Tensor:
    """Keep the int(`v`) highest bits of every value, at least one."""
    dropped = 8 - v.to(torch.int32).clamp(1, 8)
    return images & _per_image((256 - (1 << dropped)).to(torch.uint8))


def brightness(images: Tensor, v: Tensor) -> Tensor:
    """Blend black (0) and the image (1) with factor `v`, which may exceed 1."""
    return _blend(images.new_zeros(1), images, v)


def colour(images: Tensor, v: Tensor) -> Tensor:
    """Blend the grey image (0) and the image (1) with factor `v`, which may exceed 1."""
    return _blend(_luma(images)[..., None].expand_as(images).contiguous(), images, v)


def contrast(images: Tensor, v: Tensor) -> Tensor:
    """Blend the rounded mean grey level (0) and the image (1) with factor `v`, which may exceed 1."""
    pixels = images.shape[1] * images.shape[2]
    mean = (2 * _luma(images).sum((1, 2)) + pixels) // (2 * pixels)
    return _blend(_per_image(mean), images, v)


def sharpness(images: Tensor, v: Tensor) -> Tensor:
    """Blend the smoothed image (0; its border is not smoothed) and the image (1) with factor `v`."""
    smooth = images.to(torch.float32)
    inner = smooth[:, 1:-1, 1:-1]
    columns = smooth[:, :-2] + smooth[:, 1:-1] + smooth[:, 2:]
    total = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + 4 * inner
    inner.copy_(((total + 6.5) / 13).floor_())
    return _blend(smooth, images, v)


def autocontrast(images: Tensor, v: Tensor) -> Tensor:
    """Stretch every channel to the full range."""
    low, high = _extremes(images)
    level = torch.arange(256, dtype=torch.float64, device=images.device)[:, None]
    scale = torch.div(constant((255.0,), images.device), (high - low).clamp(min=1))
    table = (level * scale - low * scale).clamp_(0, 255)
    return _look_up(torch.where(high > low, table, level), _cells(images)).view_as(images)


def equalize(images: Tensor, v: Tensor) -> Tensor:
    """Flatten the histogram of every channel."""
    cells = _cells(images)
    histogram = torch.zeros(len(images), 256 * images.shape[3], dtype=torch.int64, device=images.device)
    histogram = histogram.scatter_add_(1, cells, torch.ones_like(cells)).view(len(images), 256, -1)
    below = histogram.cumsum(1) - histogram
    step = below.gather(1, _extremes(images)[1].to(torch.int64)) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255)
    level = torch.arange(256, device=images.device)[:, None]
    return _look_up(torch.where(step > 0, table, level), cells).view_as(images)


def rotation(v: Tensor, height: int, width: int) -> Tensor:
    """Map of a rotation by `v` degrees counter-clockwise about the centre."""
    x, y = width / 2, height / 2
    cos, sin = torch.cos(v * (math.pi / 180)), torch.sin(v * (math.pi / 180))
    return torch.stack((cos, -sin, -cos * x + sin * y + x, sin, cos, -sin * x - cos * y + y), 1)


def shear(v: Tensor, height: int, width: int, axis: int) -> Tensor:
    """Map that reads `v` pixels further along `axis` (1: down, 2: right) per pixel across."""
    return _with_coefficient(v, 1 if axis == 2 else 3)


def translation(v: Tensor, height: int, width: int, axis: int) -> Tensor:
    """Map that reads `v` sides further along `axis` (1: down, 2: right), rounded to whole pixels."""
    return _with_coefficient((v * (width if axis == 2 else height) + 0.5).floor(), 2 if axis == 2 else 5)


@dataclass(frozen=True)
class Warp:
    """An `Op` that reads the nearest pixel under an affine map, and `fill` outside the image.

    `maps` turns magnitudes [b] and the height and width of the images into maps, float64 [b, 6], for `affine`; images
    of different warps can share a call of it.
    """

    maps: Callable[[Tensor, int, int], Tensor]
    fill: int = 0

    def __call__(self, images: Tensor, v: Tensor) -> Tensor:
        """Warp uint8 images [b, h, w, 3]."""
        return affine(images, self.maps(v, *images.shape[1:3]), self.fill)


def affine(images: Tensor, maps: Tensor, fill: int) -> Tensor:
    """Read the nearest pixel to (a x + b y + c, d x + e y + f), in 16-bit fixed point from pixel centres.

    Args:
        images: uint8 [b, h, w, 3].
        maps: a to f of each image, float64 [b, 6].
        fill: value outside the image.
    """
    y, x = _grid(images)
    half, centred = maps * 0.5, maps.clone()
    centred[:, 2::3] += half[:, 0::3]
    centred[:, 2::3] += half[:, 1::3]
    a, b, c, d, e, f = (centred * 65536 + 0.5).floor().to(torch.int64)[:, :, None, None].unbind(1)
    y, x = (d * x + (e * y + f)) >> 16, (a * x + c + b * y) >> 16
    count, height, width, channels = images.shape
    outside = (y < 0) | (y >= height) | (x < 0) | (x >= width)
    first = torch.arange(count, device=images.device)[:, None, None] * (height * width)
    position = torch.where(outside, count * height * width, first + y * width + x)
    pixels = torch.cat((images.reshape(-1, channels), images.new_full((1, channels), fill)))
    return pixels.index_select(0, position.flatten()).view_as(images)


def smooth_shear(images: Tensor, v: Tensor, axis: int, taps: int) -> Tensor:
    """Shear as `shear` describes, interpolating between 2 (linear) or 4 (cubic) pixels."""
    side = images.shape[axis]
    y, x = _grid(images)
    along, across = (x, y) if axis == 2 else (y, x)
    position = (along + 0.5) + v[:, None, None] * (across + 0.5)
    outside = (position < 0) | (position >= side)
    start = (position - 0.5).floor()
    fraction = position - 0.5 - start
    first = start.to(torch.int64)
    planes = images.permute(3, 0, 1, 2).to(torch.float64, memory_format=torch.contiguous_format)
    pixels = []
    for tap in range(1 - taps // 2, 1 + taps // 2):
        source = (first + tap).clamp_(0, side - 1)
        pixels.append(planes.gather(1 + axis, source.expand_as(planes)))
    value = _interpolate(pixels, fraction).masked_fill_(outside, 0)
    return value.clamp_(0, 255).to(torch.uint8).permute(1, 2, 3, 0).contiguous()


def box(images: Tensor, v: Tensor, paint: tuple[int, int, int]) -> Tensor:
    """Paint one box per image: `v` is float64 [b, 3], centre x, centre y and side, in image sides.

    In pixels, left and top are int(max(0, centre - side/2)), right and bottom int(min(image side, left +
    side)), all inclusive: at the left and top edge a box keeps its size, at the right and bottom edge it is
    cut.
    """
    _, height, width, channels = images.shape
    side = v[:, 2] * width

    def covered(centre: Tensor, length: int) -> Tensor:
        first = (centre * length - side / 2).clamp(min=0).floor()
        last = (first + side).clamp(max=length).floor()
        pixel = torch.arange(length, device=images.device)
        return (pixel >= first[:, None]) & (pixel <= last[:, None])

    rows, columns = covered(v[:, 1], height), covered(v[:, 0], width).repeat_interleave(channels, 1)
    values = constant(paint, images.device).to(torch.uint8).repeat(width)
    lines = images.reshape(-1, height, width * channels)
    return torch.where(rows[:, :, None] & columns[:, None, :], values, lines).view_as(images)


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the values as a float64 tensor on the device, created once."""
    made = torch.tensor(values, dtype=torch.float64, device=device)
    finished(device)
    return made


def _per_image(v: Tensor) -> Tensor:
    return v[:, None, None, None]


def _blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Degenerate + factor * (image - degenerate) in float32, clipped and truncated to 8 bits."""
    degenerate = degenerate.to(torch.float32)
    blended = (images - degenerate).mul_(_per_image(factor.to(torch.float32)))
    return blended.add_(degenerate).clamp_(0, 255).to(torch.uint8)


def _luma(images: Tensor) -> Tensor:
    """ITU-R 601 luma in 16-bit fixed point: int32 [b, h, w]."""
    red, green, blue = images.to(torch.int32).unbind(3)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def _extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest value per image and channel: float64 [b, 1, c]."""
    planes = images.flatten(1, 2)
    return planes.amin(1, keepdim=True).to(torch.float64), planes.amax(1, keepdim=True).to(torch.float64)


def _cells(images: Tensor) -> Tensor:
    """Position of every value in its image's flattened [256, c] histogram: int64 [b, h * w * c]."""
    channels = images.shape[3]
    values = images.flatten(1).to(torch.int64)
    channel = torch.arange(channels, device=images.device).repeat(values.shape[1] // channels)
    return values.mul_(channels).add_(channel)


def _look_up(table: Tensor, cells: Tensor) -> Tensor:
    """Look up tables [b, 256, c], truncated to 8 bits, at `cells`: uint8 [b, h * w * c]."""
    return table.to(torch.uint8).flatten(1).gather(1, cells)


def _grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers [1, h, 1] and column numbers [1, 1, w], int64."""
    rows, columns = (torch.arange(n, device=images.device) for n in images.shape[1:3])
    return rows[None, :, None], columns[None, None, :]


def _with_coefficient(v: Tensor, place: int) -> Tensor:
    """Identity maps, but for `v` at a place of each: float64 [b, 6]."""
    maps = constant((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), v.device).repeat(len(v), 1)
    maps[:, place] = v
    return maps


def _interpolate(pixels: list[Tensor], t: Tensor) -> Tensor:
    """Linear (2 pixels) or cubic (4 pixels) interpolation at fraction `t` after the middle-left pixel."""
    if len(pixels) == 2:
        left, right = pixels
        return left + (right - left) * t
    a, b, c, d = pixels
    return b + t * (c - a + t * (2 * (a - b) + c - d + t * (b - a - c + d)))


GREY = (127, 127, 127)

OPS: dict[str, Op] = {
    "identity": lambda images, v: images,
    "autocontrast": autocontrast,
    "equalize": equalize,
    "invert": lambda images, v: 255 - images,
    "solarize": solarize,
    "posterize": posterize,
    "brightness": brightness,
    "colour": colour,
    "contrast": contrast,
    "sharpness": sharpness,
    "rotate": Warp(rotation),
    "rotate_on_grey": Warp(rotation, fill=128),
    "shear_x": Warp(partial(shear, axis=2)),
    "shear_y": Warp(partial(shear, axis=1)),
    "linear_shear_x": partial(smooth_shear, axis=2, taps=2),
    "linear_shear_y": partial(smooth_shear, axis=1, taps=2),
    "cubic_shear_x": partial(smooth_shear, axis=2, taps=4),
    "cubic_shear_y": partial(smooth_shear, axis=1, taps=4),
    "translate_x": Warp(partial(translation, axis=2)),
    "translate_y": Warp(partial(translation, axis=1)),
    "grey_box": partial(box, paint=GREY),
}
