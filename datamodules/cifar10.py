"""CIFAR-10: 32 x 32 colour photographs of ten kinds of objects."""

from datamodules.base import FSSLDataModule
from datamodules.io import sources
from datamodules.io.sources import Arrays


class CIFAR10(FSSLDataModule):
    """50 000 training and 10 000 test images; constants of CBAFed's and FedDure's released codes."""

    num_classes = 10
    train_size = 50_000
    mean = (0.49139968, 0.48215827, 0.44653124)
    std = (0.24703233, 0.24348505, 0.26158768)

    def read(self) -> Arrays:
        """See ``sources.cifar10``."""
        return sources.cifar10(self.hparams.data_dir)
