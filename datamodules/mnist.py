"""MNIST: 28 x 28 grey images of handwritten digits, given to networks as 32 x 32 with three equal channels."""

from typing import Any

from datamodules.base import FSSLDataModule
from datamodules.io import sources
from datamodules.io.sources import Arrays


class MNIST(FSSLDataModule):
    """60 000 training and 10 000 test images, which are not flipped by default; the customary constants.

    Args:
        flip: probability of a horizontal flip: a mirrored digit is no digit, or another one.
        **base: see ``FSSLDataModule``.
    """

    num_classes = 10
    train_size = 60_000
    mean = (0.1307,)
    std = (0.3081,)
    zoom_size = 36

    def __init__(self, flip: float = 0.0, **base: Any) -> None:
        super().__init__(flip=flip, **base)

    def read(self) -> Arrays:
        """See ``sources.mnist``."""
        return sources.mnist(self.hparams.data_dir)
