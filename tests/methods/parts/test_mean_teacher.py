"""Sharpening against the released functions and closed forms."""

import torch

from golden_files import close, load, noise
from methods.parts.mean_teacher import sharpen

SHARPEN = load("rscfed/sharpen")


def test_released_sharpening() -> None:
    p = SHARPEN["inputs"]["p"]
    close(sharpen(p), SHARPEN["outputs"]["sharpened"], SHARPEN)
    close(sharpen(p, SHARPEN["extra"]["t"]), SHARPEN["extra"]["sharpened"], SHARPEN)


def test_sharpening_laws() -> None:
    """Temperature 1 changes nothing; lower ones keep the order and the uniform distribution; rows sum to 1."""
    p = noise(20, 7).softmax(dim=1)
    torch.testing.assert_close(sharpen(p, 1.0), p)
    sharp = sharpen(p, 0.3)
    assert torch.equal(sharp.argsort(dim=1), p.argsort(dim=1))
    assert bool((sharp.amax(dim=1) > p.amax(dim=1)).all())
    torch.testing.assert_close(sharp.sum(dim=1), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(sharpen(torch.full((1, 5), 0.2)), torch.full((1, 5), 0.2))
    torch.testing.assert_close(sharpen(torch.tensor([[0.8, 0.2]]))[0, 0], torch.tensor(0.64 / 0.68))
