"""Batched operations against Pillow, pools against a picture-by-picture replay, laws against the papers."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from datamodules.views import pixelops
from datamodules.views.pipelines import Look, views
from datamodules.views.pixelops import OPS
from datamodules.views.randaugment import FIXMATCH_LEVELS
from golden_files import load

PIPELINES = {
    "fixmatch_uniform": "randaugment_uniform",
    "maximal": "randaugment_maximal",
    "fixmatch_levels": "randaugment_levels",
    "grid_levels": "randaugment_grid",
    "affine": "randaugment_affine",
}
LOOK = Look(32, 40, 0.5, (0.5,), (0.25,))
RECIPES = {key: views(name, LOOK)["strong"].transforms[0] for key, name in PIPELINES.items()}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count, side, seed=0):
    """Noise, narrow ranges, gradients, flat colours, drawings and smooth pictures."""
    g = seeded(seed)
    ramp = torch.linspace(0, 255, side)
    gradient = torch.stack((ramp[:, None].expand(side, side), ramp.expand(side, side), ramp.flip(0)[:, None] + ramp), 2)
    out = []
    for i in range(count):
        colour = torch.randint(0, 200, (3,), generator=g).float()
        noise = torch.randint(0, 256, (side, side, 3), generator=g).float()
        drawing = torch.zeros(side, side, 3)
        drawing[side // 4 : side // 2, side // 3 :] = colour
        coarse = 255 * torch.rand(1, 3, 4, 4, generator=g)
        smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")[0].permute(1, 2, 0)
        kinds = (noise, colour + noise / 5, gradient * torch.rand(1, generator=g), colour.expand_as(noise), drawing)
        out.append((*kinds, smooth)[i % 6].clamp(0, 255).to(torch.uint8))
    return torch.stack(out)


def affine(image, *data, resample=Image.Resampling.NEAREST):
    return image.transform(image.size, Image.Transform.AFFINE, data, resample)


def rotate_on_grey(image, degrees):
    turned = image.convert("RGBA").rotate(degrees)
    return Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert("RGB")


def rectangle(image, x, y, side, colour):
    """The released box rule; all lengths in pixels."""
    left, top = int(max(0, x - side / 2)), int(max(0, y - side / 2))
    image = image.copy()
    corners = (left, top, min(image.width, left + side), min(image.height, top + side))
    ImageDraw.Draw(image).rectangle(corners, colour)
    return image


LINEAR, CUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
PILLOW = {
    "identity": lambda image, v: image,
    "autocontrast": lambda image, v: ImageOps.autocontrast(image),
    "equalize": lambda image, v: ImageOps.equalize(image),
    "invert": lambda image, v: ImageOps.invert(image),
    "solarize": lambda image, v: ImageOps.solarize(image, v),
    "posterize": lambda image, v: ImageOps.posterize(image, max(1, int(v))),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "colour": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "rotate": lambda image, v: image.rotate(v),
    "rotate_on_grey": rotate_on_grey,
    "shear_x": lambda image, v: affine(image, 1, v, 0, 0, 1, 0),
    "shear_y": lambda image, v: affine(image, 1, 0, 0, v, 1, 0),
    "linear_shear_x": lambda image, v: affine(image, 1, v, 0, 0, 1, 0, resample=LINEAR),
    "linear_shear_y": lambda image, v: affine(image, 1, 0, 0, v, 1, 0, resample=LINEAR),
    "cubic_shear_x": lambda image, v: affine(image, 1, v, 0, 0, 1, 0, resample=CUBIC),
    "cubic_shear_y": lambda image, v: affine(image, 1, 0, 0, v, 1, 0, resample=CUBIC),
    "translate_x": lambda image, v: affine(image, 1, 0, v * image.width, 0, 1, 0),
    "translate_y": lambda image, v: affine(image, 1, 0, 0, 0, 1, v * image.height),
    "grey_box": lambda image, v: rectangle(image, *(32 * f for f in v), (127, 127, 127)),
}
RANGES = {
    "solarize": (0, 256),
    "posterize": (0, 8.99),
    "rotate": (-30, 30),
    "rotate_on_grey": (0, 360),
    "grey_box": (0, 1),
    **dict.fromkeys(("brightness", "colour", "contrast", "sharpness"), (0, 2)),
}
TIES = {"rotate", "rotate_on_grey", "linear_shear_x", "linear_shear_y", "cubic_shear_x", "cubic_shear_y"}


def magnitudes(name, count, seed=1):
    low, high = RANGES.get(name, (-0.4, 0.4))
    shape = (count, 3) if name == "grey_box" else (count,)
    return low + (high - low) * torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("side", [32, 21])
@pytest.mark.parametrize("name", OPS)
def test_operation_equals_pillow(name, side):
    if name == "grey_box":
        side = 32
    images, v = pictures(240, side), magnitudes(name, 240)
    result = OPS[name](images, v)
    pairs = zip(map(Image.fromarray, images.numpy()), v.tolist(), strict=True)
    expected = np.stack([np.asarray(PILLOW[name](image, magnitude)) for image, magnitude in pairs])
    assert result.dtype == torch.uint8
    assert (result.numpy() != expected).mean() <= (0.0005 if name in TIES else 0)
    if name != "identity":
        assert (expected != images.numpy()).mean() > 0.05


@pytest.mark.parametrize("key", RECIPES)
def test_pools_are_those_of_the_papers(key):
    """As the released codes have them, and ``affine``; they were once compared with tables written apart from ours.

    A pool in numbers: the magnitudes of its operations at four pairs of draws, and what else it does.
    """
    u, coin = torch.tensor([[0.0, 0.3, 0.6, 0.99], [0.1, 0.9, 0.4, 0.7]], dtype=torch.float64)
    recipe, last = RECIPES[key], RECIPES[key].last
    box = last and [last.smallest, last.largest, last.first, *last.paint]
    numbers = {name: law(u, coin).round(decimals=6).tolist() for name, law in recipe.entries}
    told = {"n": recipe.n, "execution": recipe.execution, "caps": list(recipe.caps), "box": box, **numbers}
    assert told == load("pools")[key]


@pytest.mark.parametrize("key", RECIPES)
def test_recipe_replays_pillow_picture_by_picture(key):
    recipe, count, n = RECIPES[key], 120, RECIPES[key].n
    images = pictures(count, 32, seed=4)
    result = recipe(images, seeded(9)).numpy()

    draws = seeded(9)
    u, coin, chance = torch.rand(3, n, count, generator=draws, dtype=torch.float64)
    choice = torch.randint(len(recipe.entries), (n, count), generator=draws)
    if key == "grid_levels":
        u = u * (2 + torch.randint(4, (count,), generator=draws)) / 5
    boxes = torch.rand(count, 3, generator=draws, dtype=torch.float64).tolist()
    different = []
    for i in range(count):
        image = Image.fromarray(images[i].numpy())
        for slot in range(n):
            name, law = recipe.entries[choice[slot][i]]
            if chance[slot][i] < recipe.execution:
                (magnitude,) = law(u[slot][i : i + 1], coin[slot][i : i + 1]).tolist()
                image = PILLOW[name](image, magnitude)
        x, y, s = boxes[i]
        if key == "fixmatch_uniform":
            image = rectangle(image, 1 + 31 * x, 1 + 31 * y, 0.5 * 32 * s, (125, 123, 114))
        elif key == "fixmatch_levels":
            image = rectangle(image, 32 * x, 32 * y, 16, (127, 127, 127))
        different.append((result[i] != np.asarray(image)).mean())
    assert np.mean(different) <= 0.0005


@pytest.mark.parametrize("key", RECIPES)
def test_everything_is_made_on_the_device_of_the_images(key):
    images, recipe = pictures(60, 32), RECIPES[key]
    pixelops.constant.cache_clear()
    with torch.device("meta"):
        result = recipe(images, seeded(5))
    assert torch.equal(result, recipe(images, seeded(5)))
    assert recipe(images[:0], seeded()).shape == (0, 32, 32, 3)


@pytest.mark.parametrize("case", load("allclients/strong_augmentation")["cases"][0]["outputs"])
def test_released_pictures(case):
    """SAGE's and ProxyFL's: the executed operations at their levels, then the box, give its mean colours.

    Which way an operation went is not told, so one of its two signs must.
    """
    laws, operations = dict(FIXMATCH_LEVELS.entries), []
    for name, level in case["ops"]:
        own = {"Color": "colour", "TranslateX": "translate_x", "TranslateY": "translate_y"}.get(name, name.lower())
        operations.append((own, laws[own], torch.tensor([(level - 0.5) / 9], dtype=torch.float64)))
    left, top, right, bottom = case["box"]
    centre = torch.tensor([[(left + 8) / 32, (top + 8) / 32, FIXMATCH_LEVELS.last.largest]], dtype=torch.float64)
    means = []
    for coin in (torch.tensor([0.0]), torch.tensor([0.9])):
        image = (torch.arange(32 * 32 * 3) * 7 % 256).to(torch.uint8).view(1, 32, 32, 3)
        for name, law, u in operations:
            image = OPS[name](image, law(u, coin))
        image = pixelops.box(image, centre, FIXMATCH_LEVELS.last.paint)
        assert (image[0, top : bottom + 1, left : right + 1] == 127).all()
        means.append(image.double().mean((0, 1, 2)).tolist())
    assert pytest.approx(case["mean_rgb"], abs=1e-3) in means
