"""CIFAR-10: 32 x 32 colour photographs of ten kinds of objects."""

from pathlib import Path

import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays, Folder, load


class CIFAR10(FSSLDataModule):
    """50 000 training and 10 000 test images; constants of CBAFed's and FedDure's released codes."""

    num_classes = 10
    mean = (0.49139968, 0.48215827, 0.44653124)
    std = (0.24703233, 0.24348505, 0.26158768)

    def read(self) -> Arrays:
        """Images 32x32x3 in the order of the official batches."""
        files = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
        return read_cifar("CIFAR10", "cifar-10-batches-py", files, self.hparams.data_dir)


def read_cifar(kind: str, folder: str, files: tuple[str, ...], data_dir: Folder) -> Arrays:
    """Read pickles, which torchvision opens only if their MD5 is the published one; see ``sources.load``."""
    from torchvision import datasets

    make = getattr(datasets, kind)

    def read(root: Path, files: list[Path]) -> Arrays:
        train, test = make(root, train=True), make(root, train=False)
        labels = [np.array(part.targets) for part in (train, test)]
        return Arrays(train.data, labels[0], test.data, labels[1], tuple(train.classes), {})

    return load(
        kind.lower(),
        data_dir,
        [[f"{folder}/{file}" for file in files]],
        read,
        f"Run torchvision.datasets.{kind}('.', download=True) where there is a network and copy {folder}",
        fetch=lambda root: make(root, download=True),
    )
