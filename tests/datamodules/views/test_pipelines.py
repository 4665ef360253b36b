"""Named pipelines: which views they offer, and that weak and strong views are drawn apart."""

import sys
from pathlib import Path

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


@pytest.mark.parametrize("name", ["randaugment_uniform", "randaugment_maximal"])
def test_strong_views_are_cut_apart_and_augmented(name: str) -> None:
    """A strong view is another window than the weak one, and more than a window."""
    views = pipelines.views(name, LOOK)
    weak, strong = views["weak"], views["strong"]
    assert strong.geometry == weak.geometry
    assert len(strong.transforms) == 1
    prepared, index = weak.geometry.prepare(images()), torch.arange(6)
    g = torch.Generator().manual_seed(1)
    first, second = weak(prepared, index, g), strong(prepared, index, g)
    assert not torch.equal(first, second)
    bare = pipelines.views("pad_crop_flip", LOOK)["weak"]
    torch.testing.assert_close(
        weak(prepared, index, torch.Generator().manual_seed(2)), bare(prepared, index, torch.Generator().manual_seed(2))
    )


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
    assert views["strong"].transforms[0].n == 6


@pytest.mark.parametrize(
    ("made", "fits"),
    [("{'weak': look.plain, 'test': look.plain}", True), ("{'weak': look.plain}", False), ("9", False)],
)
def test_a_pipeline_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, fits: bool) -> None:
    """A function anywhere, which gets the data set's properties."""
    (tmp_path / "my_pipelines.py").write_text(f"def mine(look):\n    return {made}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_pipelines", raising=False)
    if fits:
        assert pipelines.views("my_pipelines.mine", LOOK) == {"weak": LOOK.plain, "test": LOOK.plain}
    else:
        with pytest.raises(ConfigError, match=r"data\.pipeline my_pipelines.mine: return a dict of views"):
            pipelines.views("my_pipelines.mine", LOOK)
