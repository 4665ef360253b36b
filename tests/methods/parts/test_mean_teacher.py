"""Sharpening against the released functions and closed forms."""

from golden_files import close, load
from methods.parts.mean_teacher import sharpen

SHARPEN = load("rscfed/sharpen")


def test_released_sharpening() -> None:
    p = SHARPEN["inputs"]["p"]
    close(sharpen(p), SHARPEN["outputs"]["sharpened"], SHARPEN)
    close(sharpen(p, SHARPEN["extra"]["t"]), SHARPEN["extra"]["sharpened"], SHARPEN)
