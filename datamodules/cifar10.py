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
        return read_cifar("CIFAR10", self.hparams.data_dir)


def read_cifar(kind: str, data_dir: Folder) -> Arrays:
    """Read pickles, which torchvision opens only if their MD5 is the published one; see ``sources.load``."""
    from torchvision import datasets

    make = getattr(datasets, kind)
    names = [*(name for name, _ in make.train_list + make.test_list), make.meta["filename"]]

    def read(root: Path, files: list[Path]) -> Arrays:
        train, test = make(root, train=True), make(root, train=False)
        labels = [np.array(part.targets) for part in (train, test)]
        return Arrays(train.data, labels[0], test.data, labels[1], tuple(train.classes), {})

    return load(
        kind.lower(),
        data_dir,
        [[f"{make.base_folder}/{name}" for name in names]],
        read,
        f"Run torchvision.datasets.{kind}('.', download=True) where there is a network and copy {make.base_folder}",
        fetch=lambda root: make(root, download=True),
    )
