"""ISIC 2018 task 3 (HAM10000): dermatoscopic images of seven kinds of skin lesions."""

import csv
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError
from datamodules.common.files import read_bytes
from datamodules.io.sources import Arrays, Content, decoded, files_below, load

TRUTH = "ISIC2018_Task3_Training_GroundTruth.csv"
CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


class ISIC2018(FSSLDataModule):
    """8 012 training and 2 003 test images, split by image as by RSCFed's authors, with their released constants."""

    num_classes = 7
    train_size = 8_012
    mean = (0.7630332, 0.5456457, 0.57004654)
    std = (0.14092809, 0.15261231, 0.16997086)
    image_size = 224
    zoom_size: ClassVar[int] = 250

    def read(self) -> Arrays:
        """Read ``<data_dir>/isic2018``: HAM10000_metadata, with or without .csv, and .jpg files in any subfolders.

        Training images become squares (Pillow, bilinear) of the side that windows are cut from, test images of the
        network's; they are cached in ``<data_dir>/isic2018-<side>-<side>.npz``.

        Where there is only the challenge's ``ISIC2018_Task3_Training_GroundTruth.csv``, its rows are split in the same
        way. They are in another order, so the split is another one than RSCFed's, has a cache of its own
        (``isic2018_truth-``), and ``notes`` says so.
        """
        root, sides = Path(self.hparams.data_dir), (self.hparams.zoom or self._zoom(), self.image_size)
        name = f"isic2018-{sides[0]}-{sides[1]}"
        notes: tuple[str, ...] = ()
        places = [f"isic2018/HAM10000_metadata{suffix}" for suffix in (".csv", "")]
        alone = not any((root / place).exists() for place in (f"{name}.npz", *places))
        if alone and (root / "isic2018" / TRUTH).exists():
            name, places = name.replace("isic2018", "isic2018_truth"), [f"isic2018/{TRUTH}"]
            notes = (f"{TRUTH} has another order than HAM10000_metadata: not the split of the published lists",)
        arrays = load(
            name,
            root,
            [[place] for place in places],
            partial(read_folder, sides),
            "Get HAM10000 (doi:10.7910/DVN/DBW86T, CC BY-NC 4.0), unpack HAM10000_metadata and both folders of "
            "images into a folder isic2018, and move it",
            slow=True,
        )
        return replace(arrays, notes=notes)


def read_folder(sides: tuple[int, int], root: Path, files: list[Path]) -> Content:
    """Read the images that a table lists, for training and for testing as squares of these sides."""
    rows = list(csv.DictReader(read_bytes(files[0]).decode().splitlines()))
    if files[0].name == TRUTH:
        listed = [(row["image"], _marked(row)) for row in rows]
    else:
        listed = [(row["image_id"], CLASSES.index(row["dx"])) for row in rows]
    images = {file.stem: file for file in files_below(files[0].parent) if file.suffix.lower() in (".jpg", ".jpeg")}
    if missing := [image for image, _ in listed if image not in images]:
        raise DataError(f"{len(missing)} of {len(rows)} images are missing, first {missing[0]}.jpg")
    content = []
    for part, side in zip(split(len(rows)), sides, strict=True):
        content.append(decoded([images[listed[i][0]] for i in part], side, side))
        content.append(np.array([listed[i][1] for i in part]))
    return *content, CLASSES


def _marked(row: Mapping[str, str]) -> int:
    """Class of an image in the challenge's table, which has a column of 0.0 and 1.0 for each class.

    Raises:
        DataError: not exactly one class is marked.
    """
    marked = [float(row[name.upper()]) for name in CLASSES]
    if sorted(marked) != [0.0] * 6 + [1.0]:
        raise DataError(f"{row['image']} must have one 1 and otherwise 0; it has {marked}")
    return marked.index(1.0)


def split(num_images: int) -> tuple[list[int], list[int]]:
    """Return the training and test rows of the metadata: a shuffle with Python's seed 1337, cut at 80 %.

    Source: the index lists published with RSCFed.
    """
    rows = list(range(num_images))
    random.Random(1337).shuffle(rows)
    return rows[: num_images * 4 // 5], rows[num_images * 4 // 5 :]
