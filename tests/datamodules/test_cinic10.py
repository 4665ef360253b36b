"""CINIC-10 from a tiny folder in the published layout."""

import numpy as np
import pytest
from PIL import Image

from datamodules.cinic10 import CINIC10
from datamodules.common.errors import DataError
from datamodules.io import sources

CLASSES = ("airplane", "bird")
TRAIN = ("n02691156_10.png", "cifar10-train-7.png", "n02691156_9.png", "cifar10-train-10.png")
ORDER = ("cifar10-train-10.png", "cifar10-train-7.png", "n02691156_10.png", "n02691156_9.png")


def shade(part: str, name: str, file: str) -> int:
    """A grey level that tells the images apart."""
    return 20 * (TRAIN.index(file) + 1) + 100 * CLASSES.index(name) + (part == "test")


def make_folder(root, folder="cinic10", classes=CLASSES):
    for part, files in (("train", TRAIN), ("valid", TRAIN[:1]), ("test", TRAIN[:2])):
        for name in classes:
            place = root / folder / part / name
            place.mkdir(parents=True)
            for file in files:
                pixels = np.full((32, 32, 3), shade(part, name, file), dtype=np.uint8)
                Image.fromarray(pixels).save(place / file)


@pytest.mark.parametrize("folder", ["cinic10", "CINIC-10"])
def test_classes_then_file_names(tmp_path, monkeypatch, folder):
    """Class folder, then file name: CIFAR names before ImageNet names; valid is not read; the cache is the same."""
    monkeypatch.setitem(sources.CLASS_COUNTS, "cinic10", ((4, 4), (2, 2)))
    make_folder(tmp_path, folder)
    arrays = CINIC10(data_dir=str(tmp_path)).read()
    assert arrays.train_images.shape == (8, 32, 32, 3)
    assert arrays.train_images[:, 5, 7, 1].tolist() == [shade("train", c, f) for c in CLASSES for f in ORDER]
    assert arrays.train_labels.tolist() == [0] * 4 + [1] * 4
    assert arrays.test_images[:, 0, 0, 0].tolist() == [shade("test", c, f) for c in CLASSES for f in TRAIN[1::-1]]
    assert arrays.class_names == CLASSES
    assert list(arrays.sha256) == ["cinic10.npz"]
    (tmp_path / folder).rename(tmp_path / "elsewhere")
    again = CINIC10(data_dir=str(tmp_path)).read()
    assert again.sha256 == arrays.sha256
    assert (again.train_images == arrays.train_images).all()


def test_both_parts_have_the_same_classes(tmp_path):
    make_folder(tmp_path)
    (tmp_path / "cinic10/test/bird").rename(tmp_path / "cinic10/test/cat")
    with pytest.raises(DataError, match=r"classes of train are \['airplane', 'bird'\]"):
        CINIC10(data_dir=str(tmp_path)).read()
    assert not (tmp_path / "cinic10.npz").exists()
