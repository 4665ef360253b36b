"""CINIC-10: 32 x 32 colour photographs of CIFAR-10's classes, from CIFAR-10 and from ImageNet."""

from pathlib import Path

import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError
from datamodules.io import sources
from datamodules.io.sources import Arrays, Content, FileLayout

FOLDERS = ("cinic10", "CINIC-10")


class CINIC10(FSSLDataModule):
    """90 000 training and 90 000 test images; constants of FedDure's released code. ``valid`` is not used.

    Images are sorted by class folder, then file name, where names of CIFAR-10 images come before those of ImageNet:
    with ``labelled_pool_order=dataset`` a labelled pool of up to 2 000 per class has CIFAR-10 images only.
    """

    num_classes = 10
    train_size = 90_000
    mean = (0.47889522, 0.47227842, 0.43047404)
    std = (0.24205776, 0.23828046, 0.25874835)

    def read(self) -> Arrays:
        """Read the cache ``cinic10.npz``, else the folders ``train`` and ``test`` of ``cinic10`` or ``CINIC-10``."""
        return sources.load(
            "cinic10",
            self.hparams.data_dir,
            [FileLayout((f"{folder}/train", f"{folder}/test"), read_folders, slow=True) for folder in FOLDERS],
            None,
            "Get CINIC-10.tar.gz (doi:10.7488/ds/2448), unpack it into a folder cinic10, and move it",
        )


def read_folders(root: Path, folders: list[Path]) -> Content:
    """Read the images ``<part>/<class>/<file>`` of both parts, sorted by class name, then by file name.

    Raises:
        DataError: the parts do not have the same classes.
    """
    classes = [sorted(path.name for path in folder.iterdir() if path.is_dir()) for folder in folders]
    if classes[0] != classes[1]:
        raise DataError(f"the classes of {folders[0].name} are {classes[0]}, those of {folders[1].name} {classes[1]}")
    content = []
    for folder in folders:
        files = [sorted(folder.joinpath(name).glob("*.png"), key=lambda file: file.name) for name in classes[0]]
        content.append(sources.squares([file for part in files for file in part], 32))
        content.append(np.repeat(np.arange(len(files)), [len(part) for part in files]))
    return content[0], content[1], content[2], content[3], classes[0]
