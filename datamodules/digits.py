"""Digits: scikit-learn's embedded handwritten digits, 8 x 8 enlarged to 32 x 32; needs no download."""

from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays, Images, sha256_of


class Digits(FSSLDataModule):
    """1 437 training and 360 test images; constants computed from the training images."""

    num_classes = 10
    mean = (0.3057,)
    std = (0.3236,)

    def read(self) -> Arrays:
        """Images 32x32x3: grey levels 0..16 are mapped to 0..255, 8x8 pixels enlarged to 32x32 (Pillow, bilinear).

        Sorted stably by class, every fifth image is a test image: a fixed, stratified split, in original order within
        both parts.
        """
        file = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))
        images, labels, digest = _enlarged(file)
        by_class = np.argsort(labels, kind="stable")
        test = np.zeros(len(images), dtype=bool)
        test[by_class[np.arange(360) * len(images) // 360]] = True
        names = tuple("0123456789")
        return Arrays(images[~test], labels[~test], images[test], labels[test], names, {file.name: digest})


@lru_cache(maxsize=1)  # a notebook or a test makes many data sets
def _enlarged(file: Path) -> tuple[Images, NDArray[np.int64], str]:
    """All images, uint8 [1797, 32, 32, 3], their classes, int64 [1797], and the SHA-256 of the file."""
    table = np.loadtxt(file, delimiter=",")
    small = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = [Image.fromarray(image).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR) for image in small]
    return np.stack([np.asarray(image) for image in large]), table[:, -1].astype(int), sha256_of(file)
