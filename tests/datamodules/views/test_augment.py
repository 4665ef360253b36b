"""Geometries and views against Pillow, NumPy and torchvision, and against their own laws."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.functional import normalize, to_tensor

from datamodules.views import augment
from datamodules.views.augment import Cutout, Geometry, View, resize

ZOOM = Geometry(side=40, crop=32, flip=0.5)
MIRROR = Geometry(pad=4, mode="reflect", crop=32, flip=0.5)
BLACK = Geometry(pad=4, crop=32)
MEAN, STD = (0.49, 0.48, 0.44), (0.247, 0.243, 0.261)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(seed))


def pillow(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.squeeze(-1).numpy())


@pytest.mark.parametrize(("shape", "size"), [((6, 28, 28, 1), 36), ((2, 150, 200, 3), 83), ((3, 40, 24, 3), 32)])
def test_resize_agrees_with_pillow_within_one_grey_level(shape, size):
    images = noise(*shape)
    expected = np.stack([np.asarray(pillow(i).resize((size, size), Image.Resampling.BILINEAR)) for i in images])
    assert np.abs(resize(images, size).numpy().astype(int) - expected.reshape(len(images), size, size, -1)).max() <= 1


def test_resize_in_chunks_changes_nothing(monkeypatch):
    images = noise(7, 20, 24, 3)
    whole = resize(images, 13)
    monkeypatch.setattr(augment, "CHUNK_BYTES", 3 * 20 * 24 * 3)
    assert torch.equal(resize(images, 13), whole)


@pytest.mark.parametrize("geometry", [ZOOM, MIRROR, BLACK])
def test_a_view_replays_the_pillow_pipeline(geometry: Geometry):
    images, index = noise(30, 32, 32, 3), torch.randint(0, 30, (100,), generator=seeded(5))
    view = View(geometry, mean=MEAN, std=STD)
    batch = view(geometry.prepare(images), index, seeded(1))

    draws = seeded(1)
    top, left = torch.randint(9, (100,), generator=draws), torch.randint(9, (100, 1), generator=draws)[:, 0]
    mirrored = torch.rand((100, 1), generator=draws)[:, 0] < 0.5 if geometry.flip else torch.zeros(100)
    for n, i in enumerate(index):
        if geometry is ZOOM:
            image = pillow(images[i]).resize((40, 40), Image.Resampling.BILINEAR)
        else:
            mode = {"reflect": "reflect", "zero": "constant"}[geometry.mode]
            image = Image.fromarray(np.pad(images[i].numpy(), ((4, 4), (4, 4), (0, 0)), mode=mode))
        x, y = int(left[n]), int(top[n])
        image = image.crop((x, y, x + 32, y + 32))
        image = ImageOps.mirror(image) if mirrored[n] else image
        tolerance = 1 / 255 / min(STD) if geometry is ZOOM else 0
        difference = (batch[n] - normalize(to_tensor(image), MEAN, STD)).abs()
        assert difference.max() <= tolerance + 1e-6


def test_draws_do_not_depend_on_the_default_type():
    """Inside autocast of a run in double precision, windows are those of any other run."""
    geometry, images = Geometry(pad=2, crop=8, flip=0.5), noise(40, 8, 8, 3)
    prepared, index, seen = geometry.prepare(images), torch.arange(40), []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        seen.append(geometry(prepared, index, seeded(7)))
    assert torch.equal(*seen)


@pytest.mark.parametrize("geometry", [ZOOM, MIRROR, BLACK, Geometry(side=24)])
def test_everything_is_made_on_the_device_of_the_images(geometry):
    images, view = noise(4, 32, 32, 3), View(geometry, mean=(0.1,), std=(0.7,), post=(Cutout(8),))
    augment._scale_shift.cache_clear()
    with torch.device("meta"):
        batch = view(geometry.prepare(images), torch.tensor([0, 3], device="cpu"), seeded())
    assert batch.device.type == "cpu"
    assert batch.sum() != 0


def test_cutout_follows_the_scalar_rule():
    batch = torch.randn(200, 3, 32, 32, generator=seeded()).contiguous(memory_format=torch.channels_last)
    cut = Cutout(16)(batch, seeded(2))
    draws = seeded(2)
    rows, columns = (torch.randint(32, (200, 1), generator=draws)[:, 0].tolist() for _ in range(2))
    for image, result, y, x in zip(batch, cut, rows, columns, strict=True):
        expected = image.clone()
        expected[:, max(0, y - 8) : min(32, y + 8), max(0, x - 8) : min(32, x + 8)] = 0
        assert torch.equal(result, expected)
    assert {min(rows), max(rows), min(columns), max(columns)} == {0, 31}
    assert cut.is_contiguous(memory_format=torch.channels_last)
