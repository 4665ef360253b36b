"""Fashion-MNIST: 28 x 28 grey images of clothes, given to networks as 32 x 32 with three equal channels."""

from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays
from datamodules.mnist import read_mnist

DEBIAN = "/usr/share/datasets/fashion-mnist"


class FashionMNIST(FSSLDataModule):
    """60 000 training and 10 000 test images; constants and sizes of CBAFed's released code."""

    num_classes = 10
    mean = (0.2860402,)
    std = (0.3530239,)
    zoom_size = 36

    def read(self) -> Arrays:
        """Images 28x28x1 in their order; also finds Debian's package."""
        return read_mnist("FashionMNIST", self.hparams.data_dir, extra_places=[f"{DEBIAN}/{{}}-ubyte.gz"])
