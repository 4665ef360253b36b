"""MNIST: 28 x 28 grey images of handwritten digits, given to networks as 32 x 32 with three equal channels."""

import gzip
import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError, message_of
from datamodules.common.options import Probability
from datamodules.io.sources import Arrays, Folder, load

MD5 = {
    "train-images-idx3": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 of the unpacked files."""


class MNIST(FSSLDataModule):
    """60 000 training and 10 000 test images, which are not flipped by default; the customary constants.

    Args:
        flip: probability of a horizontal flip: a mirrored digit is no digit, or another one.
        **base: see ``FSSLDataModule``.
    """

    num_classes = 10
    mean = (0.1307,)
    std = (0.3081,)
    zoom_size = 36

    def __init__(self, flip: Probability = 0.0, **base: Any) -> None:
        super().__init__(flip=flip, **base)

    def read(self) -> Arrays:
        """Images 28x28x1 in their order; the files' content must be the published one."""
        return read_mnist("MNIST", self.hparams.data_dir, tuple("0123456789"), list(MD5.values()))


def read_mnist(
    kind: str,
    data_dir: Folder,
    classes: Sequence[str] = (),
    md5: Sequence[str | None] = (None,) * len(MD5),
    extra_places: Sequence[str] = (),
) -> Arrays:
    """Read a data set in MNIST's four files, gzipped or not.

    Args:
        kind: torchvision's class, which downloads it.
        data_dir: see ``sources.load``.
        classes: the classes' names; default: torchvision's.
        md5: MD5 of the files' content, where it is checked.
        extra_places: where else a file may lie, with ``{}`` for the part.
    """
    from torchvision import datasets

    make = getattr(datasets, kind)

    def read(root: Path, files: list[Path]) -> Arrays:
        train, train_labels, test, test_labels = map(_idx, files, md5)
        return Arrays(train[..., None], train_labels, test[..., None], test_labels, tuple(classes or make.classes), {})

    places = [f"{kind}/raw/{{}}-ubyte", f"{kind}/raw/{{}}-ubyte.gz", *extra_places]
    return load(
        kind.lower().replace("fashion", "fashion_"),
        data_dir,
        [[place.format(part) for part in MD5] for place in places],
        read,
        f"Run torchvision.datasets.{kind}('.', download=True) where there is a network and copy {kind}",
        fetch=lambda root: make(root, download=True),
    )


def _idx(file: Path, md5: str | None) -> NDArray[Any]:
    """Read an IDX file of bytes, gzipped or not; its content must have the MD5, if one is given. Errors name it."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if md5 and (found := hashlib.md5(data, usedforsecurity=False).hexdigest()) != md5:
            raise DataError(f"its content has the MD5 {found} instead of {md5}")
        start, kind, axes = struct.unpack_from(">HBB", data)
        if (start, kind) != (0, 8):
            raise DataError("it is not an IDX file of bytes")
        shape = struct.unpack_from(f">{axes}I", data, 4)
        return np.frombuffer(bytearray(data), np.uint8, offset=4 + 4 * axes).reshape(shape)
    except Exception as error:
        raise DataError(f"{file.name}: {message_of(error)}") from error
