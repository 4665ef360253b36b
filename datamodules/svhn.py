"""SVHN: 32 x 32 crops of house numbers; digit 0 is class 0."""

from pathlib import Path

from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays, load


class SVHN(FSSLDataModule):
    """73 257 training and 26 032 test images (``extra`` is not used); constants of RSCFed's released code."""

    num_classes = 10
    mean = (0.4376821, 0.4437697, 0.47280442)
    std = (0.19803012, 0.20101562, 0.19703614)

    def read(self) -> Arrays:
        """Images 32x32x3 in the order of the two files, which torchvision reads."""
        from torchvision import datasets

        def read(root: Path, files: list[Path]) -> Arrays:
            train, test = datasets.SVHN(root, "train"), datasets.SVHN(root, "test")
            images = [part.data.transpose(0, 2, 3, 1) for part in (train, test)]
            return Arrays(images[0], train.labels, images[1], test.labels, tuple("0123456789"), {})

        return load(
            "svhn",
            self.hparams.data_dir,
            [["train_32x32.mat", "test_32x32.mat"]],
            read,
            "Run torchvision.datasets.SVHN('.', split, download=True) for the splits 'train' and 'test' where "
            "there is a network and copy the two .mat files",
            fetch=lambda root: [datasets.SVHN(root, split, download=True) for split in ("train", "test")],
        )
