"""CINIC-10: 32 x 32 colour photographs of CIFAR-10's classes, from CIFAR-10 and from ImageNet."""

from pathlib import Path

import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError
from datamodules.io.sources import Arrays, decoded, load


class CINIC10(FSSLDataModule):
    """90 000 training and 90 000 test images; constants of FedDure's released code. ``valid`` is not used.

    Images are sorted by class folder, then file name, where names of CIFAR-10 images come before those of ImageNet:
    with ``labelled_pool_order=dataset`` a labelled pool of up to 2 000 per class has CIFAR-10 images only.
    """

    num_classes = 10
    mean = (0.47889522, 0.47227842, 0.43047404)
    std = (0.24205776, 0.23828046, 0.25874835)

    def read(self) -> Arrays:
        """Read the cache ``cinic10.npz``, else the folders ``train`` and ``test`` of ``cinic10`` or ``CINIC-10``."""
        return load(
            "cinic10",
            self.hparams.data_dir,
            [[f"{folder}/train", f"{folder}/test"] for folder in ("cinic10", "CINIC-10")],
            read_folders,
            "Get CINIC-10.tar.gz (doi:10.7488/ds/2448), unpack it into a folder cinic10, and move it",
        )


def read_folders(root: Path, folders: list[Path]) -> Arrays:
    """Read the images ``<part>/<class>/<file>`` of both parts, sorted by class name, then by file name.

    Raises:
        DataError: the parts do not have the same classes.
    """
    from torchvision.datasets.folder import find_classes, make_dataset

    classes, test_classes = (find_classes(folder)[0] for folder in folders)
    if classes != test_classes:
        raise DataError(f"the classes of {folders[0].name} are {classes}, those of {folders[1].name} {test_classes}")
    images, labels = [], []
    for folder in folders:
        samples = make_dataset(folder, extensions=".png")
        images.append(decoded([Path(file) for file, _ in samples], 32, 32))
        labels.append(np.array([label for _, label in samples]))
    return Arrays(images[0], labels[0], images[1], labels[1], tuple(classes), {})
