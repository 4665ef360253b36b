"""Digits: scikit-learn's embedded handwritten digits, 8 x 8 enlarged to 32 x 32; needs no download."""

from datamodules.base import FSSLDataModule
from datamodules.io import sources
from datamodules.io.sources import Arrays


class Digits(FSSLDataModule):
    """1 437 training and 360 test images; constants computed from the training images."""

    num_classes = 10
    train_size = 1_437
    mean = (0.3057,)
    std = (0.3236,)

    def read(self) -> Arrays:
        """See ``sources.digits``."""
        return sources.digits()
