"""ISIC 2018 task 3 (HAM10000): dermatoscopic images of seven kinds of skin lesions."""

import csv
import random
from functools import partial
from pathlib import Path

import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError
from datamodules.io.sources import Arrays, decoded, files_below, load

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


class ISIC2018(FSSLDataModule):
    """8 012 training and 2 003 test images, split by image as by RSCFed's authors, with their released constants."""

    num_classes = 7
    mean = (0.7630332, 0.5456457, 0.57004654)
    std = (0.14092809, 0.15261231, 0.16997086)
    image_size = 224
    zoom_size = 250

    def read(self) -> Arrays:
        """Read ``<data_dir>/isic2018``: HAM10000_metadata, with or without .csv, and .jpg files in any subfolders.

        Training images become squares (Pillow, bilinear) of side ``zoom``, test images of the network's; they are
        cached in ``<data_dir>/isic2018-<side>-<side>.npz``.
        """
        sides = (self._zoom(), self.image_size)
        return load(
            f"isic2018-{sides[0]}-{sides[1]}",
            self.hparams.data_dir,
            [["isic2018/HAM10000_metadata.csv"], ["isic2018/HAM10000_metadata"]],
            partial(read_folder, sides),
            "Get HAM10000 (doi:10.7910/DVN/DBW86T, CC BY-NC 4.0), unpack HAM10000_metadata and both folders of "
            "images into a folder isic2018, and move it",
        )


def read_folder(sides: tuple[int, int], root: Path, files: list[Path]) -> Arrays:
    """Read the images that the metadata lists, for training and for testing as squares of these sides."""
    rows = list(csv.DictReader(files[0].read_bytes().decode().splitlines()))
    places = {file.stem: file for file in files_below(files[0].parent) if file.suffix.lower() in (".jpg", ".jpeg")}
    if missing := [row["image_id"] for row in rows if row["image_id"] not in places]:
        raise DataError(f"{len(missing)} of {len(rows)} images are missing, first {missing[0]}.jpg")
    images, labels = [], []
    for part, side in zip(split(len(rows)), sides, strict=True):
        images.append(decoded([places[rows[i]["image_id"]] for i in part], side, side))
        labels.append(np.array([CLASSES.index(rows[i]["dx"]) for i in part]))
    return Arrays(images[0], labels[0], images[1], labels[1], CLASSES, {})


def split(num_images: int) -> tuple[list[int], list[int]]:
    """Return the training and test rows of the metadata: a shuffle with Python's seed 1337, cut at 80 %.

    Source: the index lists published with RSCFed.
    """
    rows = list(range(num_images))
    random.Random(1337).shuffle(rows)
    return rows[: num_images * 4 // 5], rows[num_images * 4 // 5 :]
