"""Named pipelines: the views that a data set offers, named by their operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datamodules.common.errors import ConfigError
from datamodules.common.plugins import plugin
from datamodules.views.augment import Cutout, FeatureView, Geometry, View
from datamodules.views.randaugment import AFFINE, FIXMATCH_LEVELS, FIXMATCH_UNIFORM, GRID_LEVELS, MAXIMAL, RandAugment

PAD = 4
WEAK_COPIES = 2
"""Number of distorted copies for weak views in ``feature_copies``; the later ones are for strong views."""


@dataclass(frozen=True)
class Look:
    """Properties of a data set that pipelines use.

    Args:
        size: side of the network's input.
        zoom: side to which images are enlarged before a window of ``size`` is cut (zoom pipelines).
        flip: probability of a horizontal flip.
        mean: per-channel mean of pixels in [0, 1].
        std: per-channel standard deviation.
        border: black pixels around the stored images, instead of a resize to ``size``.
    """

    size: int
    zoom: int
    flip: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    border: int = 0

    def geometry(self, **cutting: Any) -> Geometry:
        """How stored images are brought to the network's size, and what is cut from them."""
        size: Any = {"border": self.border} if self.border else {"side": self.size}
        return Geometry(**{**size, **cutting})

    def view(self, geometry: Geometry, transforms: tuple = (), post: tuple = ()) -> View:  # type: ignore[type-arg]
        """Return a view with this normalisation."""
        return View(geometry, transforms=transforms, post=post, mean=self.mean, std=self.std)

    @property
    def plain(self) -> View:
        """Return the view without randomness: resized if needed."""
        return self.view(self.geometry())


Views = Mapping[str, View | FeatureView]


def zoom_crop_flip(look: Look) -> dict[str, View]:
    """Enlarge, cut a window without padding, flip; test images are not enlarged (RSCFed, CBAFed)."""
    window = look.geometry(side=look.zoom, crop=look.size, flip=look.flip)
    return {"weak": look.view(window), "test": look.plain}


def pad_crop_flip(look: Look) -> dict[str, View]:
    """Pad the image with 4 reflected pixels per side, cut a window, flip.

    Raises:
        ConfigError: the image has fewer than 4 pixels to reflect beyond its edge.
    """
    if look.size <= PAD:
        raise ConfigError(
            f"data.side={look.size}: this pipeline mirrors {PAD} pixels at every edge; choose {PAD + 1} or more"
        )
    window = look.geometry(pad=PAD, mode="reflect", crop=look.size, flip=look.flip)
    return {"weak": look.view(window), "test": look.plain}


def _strong(look: Look, recipe: RandAugment, windows: dict[str, View]) -> dict[str, View]:
    return {**windows, "strong": look.view(windows["weak"].geometry, transforms=(recipe,))}


def randaugment_uniform(look: Look) -> dict[str, View]:
    """``pad_crop_flip``; strong: another such window, 3 operations of uniform magnitude, a box ((FL)2)."""
    return _strong(look, FIXMATCH_UNIFORM, pad_crop_flip(look))


def randaugment_maximal(look: Look) -> dict[str, View]:
    """``pad_crop_flip``; strong: another such window, 2 operations of maximal magnitude (SemiFL, FedDB)."""
    return _strong(look, MAXIMAL, pad_crop_flip(look))


def randaugment_levels(look: Look) -> dict[str, View]:
    """``pad_crop_flip``; strong: another such window, 2 operations at levels 1 to 9, a box (FedRGD)."""
    return _strong(look, FIXMATCH_LEVELS, pad_crop_flip(look))


def randaugment_levels_cutout(look: Look) -> dict[str, View]:
    """``randaugment_levels``; for labelled images ``cutout``: a flipped window of the image with 4 black pixels per
    side and a square set to 0 after normalisation (FedDure).
    """
    window = look.geometry(pad=PAD, crop=look.size, flip=look.flip)
    return {**randaugment_levels(look), "cutout": look.view(window, post=(Cutout(look.size // 2),))}


def randaugment_affine(look: Look) -> dict[str, View]:
    """``zoom_crop_flip``; strong: another such window, 2 affine operations (ours, for tiny images)."""
    return _strong(look, AFFINE, zoom_crop_flip(look))


def randaugment_grid(look: Look) -> dict[str, View]:
    """Unchanged images; strong: 6 operations at the low end of a grid (FedMatch, with mean 0 and deviation 1)."""
    strong = look.view(look.plain.geometry, transforms=(GRID_LEVELS,))
    return {"weak": look.plain, "strong": strong, "test": look.plain}


def feature_versions(look: Look) -> dict[str, FeatureView]:
    """Feature vectors of the sample itself; strong: of one of its distorted copies ((FL)2)."""
    return {"weak": FeatureView(), "strong": FeatureView(1, None), "test": FeatureView()}


def feature_copies(look: Look) -> dict[str, FeatureView]:
    """Feature vectors; weak: of the sample itself or one of ``WEAK_COPIES`` slightly distorted copies; strong: of one
    of the copies after these.

    ``cutout``, for labelled samples, is another such weak view: a copy with missing words corresponds to an image with
    a missing square.
    """
    weak = FeatureView(0, 1 + WEAK_COPIES)
    return {"weak": weak, "strong": FeatureView(1 + WEAK_COPIES, None), "cutout": weak, "test": FeatureView()}


_ALL: tuple[Callable[[Look], Views], ...] = (
    zoom_crop_flip, pad_crop_flip, randaugment_uniform, randaugment_maximal, randaugment_levels,
    randaugment_levels_cutout, randaugment_affine, randaugment_grid, feature_versions, feature_copies,
)  # fmt: skip
PIPELINES = {pipeline.__name__: pipeline for pipeline in _ALL}


def views(name: str, look: Look) -> Views:
    """Return the views of the pipeline ``name``, or of a function with this dotted path; has ``weak`` and ``test``.

    Raises:
        ConfigError: there is no such pipeline, or it does not return views.
    """
    if "." not in name:
        if name not in PIPELINES:
            known = f"{', '.join(sorted(PIPELINES))}, or the dotted path of a function"
            raise ConfigError(f"unknown pipeline {name!r}; choose one of {known}")
        return PIPELINES[name](look)
    result: Views = plugin(name, f"data.pipeline {name}")(look)
    are_views = isinstance(result, Mapping) and all(isinstance(view, View | FeatureView) for view in result.values())
    if not are_views or not {"weak", "test"} <= result.keys():
        raise ConfigError(f"data.pipeline {name}: return a dict of views, such as look.plain, with 'weak' and 'test'")
    return result
