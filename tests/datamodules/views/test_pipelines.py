"""Named pipelines: which views they offer."""

from typing import Any

import pytest
import torch

from datamodules.common.errors import ConfigError
from datamodules.views import pipelines
from datamodules.views.pipelines import PIPELINES, Look

LOOK = Look(32, 40, 0.5, (0.5,), (0.25,))


def images(side: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (6, side, side, channels), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


FEATURES = {"feature_versions", "feature_copies"}  # these take no images


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - FEATURES))
@pytest.mark.parametrize(("side", "channels"), [(32, 3), (28, 1)])
def test_every_view_has_the_networks_shape(name: str, side: int, channels: int) -> None:
    views = pipelines.views(name, LOOK)
    assert {"weak", "test"} <= set(views)
    for view in views.values():
        prepared = view.geometry.prepare(images(side, channels))
        out = view(prepared, torch.arange(6), torch.Generator().manual_seed(1))
        assert (out.shape, out.dtype) == ((6, 3, 32, 32), torch.float32)
        assert bool(torch.isfinite(out).all())


def test_training_and_test_images_have_the_same_border() -> None:
    """Enlarged with their border, so that a thing stays larger in training by the zoom alone."""
    views = pipelines.views("zoom_crop_flip", Look(32, 40, 0.0, (0.0,), (1.0,), border=2))
    white = torch.full((6, 28, 28, 1), 255, dtype=torch.uint8)
    index = torch.arange(6)
    prepared = {name: views[name].geometry.prepare(white) for name in ("weak", "test")}
    assert prepared["weak"].shape[1:3] == (40, 40) and prepared["test"].shape[1:3] == (32, 32)
    assert views["test"](prepared["test"], index, None)[:, 0].mean() == pytest.approx((28 / 32) ** 2)
    assert float(prepared["weak"].float().mean() / 255) == pytest.approx((28 / 32) ** 2, abs=0.01)


def test_the_grid_pipeline_leaves_weak_views_as_they_are() -> None:
    """Only strong views change, and no window is cut; with mean 0 and deviation 1 they are pixels over 255."""
    views = pipelines.views("randaugment_grid", Look(32, 40, 0.5, (0.0,), (1.0,)))
    prepared, index = views["weak"].geometry.prepare(images()), torch.arange(6)
    g = torch.Generator().manual_seed(1)
    expected = images().permute(0, 3, 1, 2).float() / 255
    assert views["strong"].geometry == views["weak"].geometry
    for name in ("weak", "test"):
        torch.testing.assert_close(views[name](prepared, index, g), expected)
    assert not torch.equal(views["strong"](prepared, index, g), expected)


def half(look: Look) -> Any:
    return {"weak": look.plain}


@pytest.mark.parametrize("name", ["builtins.repr", f"{__name__}.half"])
def test_a_pipeline_of_your_own_gives_views_for_training_and_tests(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.pipeline {name}: return a dict of views"):
        pipelines.views(name, LOOK)
