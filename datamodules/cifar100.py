"""CIFAR-100: 32 x 32 colour photographs of a hundred kinds of objects (fine labels)."""

from datamodules.base import FSSLDataModule
from datamodules.cifar10 import read_cifar
from datamodules.io.sources import Arrays


class CIFAR100(FSSLDataModule):
    """50 000 training and 10 000 test images; constants of RSCFed's released code."""

    num_classes = 100
    mean = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
    std = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)

    def read(self) -> Arrays:
        """Images 32x32x3 in the official order, with their fine labels."""
        return read_cifar("CIFAR100", self.hparams.data_dir)
