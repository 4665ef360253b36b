"""ISIC 2018: the folder as published, its split, sizes, and damage."""

import hashlib
import random

import numpy as np
import pytest
from PIL import Image

from datamodules import isic2018
from datamodules.common.errors import DataError
from datamodules.io import sources
from datamodules.isic2018 import ISIC2018


def write_folder(root, count=10, name="HAM10000_metadata.csv", seed=0, suffix=".jpg"):
    """Write metadata and files 60x45 of one colour each; return the rows."""
    rng = random.Random(seed)
    folder = root / "isic2018"
    for part in ("HAM10000_images_part_1", "HAM10000_images_part_2"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    rows = [(f"ISIC_{1000 + 7 * i % 97:07d}", rng.choice(isic2018.CLASSES), 20 * i) for i in range(count)]
    lines = ["lesion_id,image_id,dx,dx_type", *(f"HAM_{i},{image},{dx},histo" for i, (image, dx, _) in enumerate(rows))]
    (folder / name).write_text("\n".join(lines) + "\n")
    for i, (image, _, grey) in enumerate(rows):
        Image.new("RGB", (60, 45), (grey, 0, 255 - grey)).save(
            folder / f"HAM10000_images_part_{i % 2 + 1}" / f"{image}{suffix}"
        )
    return rows


def expect_counts(monkeypatch, rows):
    labels = [isic2018.CLASSES.index(dx) for _, dx, _ in rows]
    parts = tuple(tuple(np.bincount([labels[i] for i in part]).tolist()) for part in isic2018.split(len(rows)))
    monkeypatch.setitem(sources.CLASS_COUNTS, "isic2018", parts)


@pytest.mark.parametrize(("name", "suffix"), [("HAM10000_metadata.csv", ".jpg"), ("HAM10000_metadata", ".JPG")])
def test_a_folder_as_published(tmp_path, monkeypatch, name, suffix):
    """One of the folders of images is behind a link."""
    rows = write_folder(tmp_path, name=name, suffix=suffix)
    part = tmp_path / "isic2018" / "HAM10000_images_part_2"
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    expect_counts(monkeypatch, rows)
    data = ISIC2018(data_dir=str(tmp_path), side=22, zoom=25)
    arrays = data.read()
    assert arrays.train_images.shape == (8, 25, 25, 3) and arrays.test_images.shape == (2, 22, 22, 3)
    assert arrays.class_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    order = list(range(10))
    random.Random(1337).shuffle(order)
    for part, images, labels in (
        (order[:8], arrays.train_images, arrays.train_labels),
        (order[8:], arrays.test_images, arrays.test_labels),
    ):
        assert [arrays.class_names[k] for k in labels] == [rows[i][1] for i in part]
        assert all(abs(image[..., 0].mean() - rows[i][2]) < 4 for i, image in zip(part, images, strict=True))
    cache = tmp_path / "isic2018-25-22.npz"
    assert arrays.sha256 == {cache.name: hashlib.sha256(cache.read_bytes()).hexdigest()}
    for file in (tmp_path / "isic2018").rglob("ISIC*"):
        file.unlink()
    again = data.read()
    for field in ("train_images", "train_labels", "test_images", "test_labels", "class_names"):
        np.testing.assert_array_equal(getattr(again, field), getattr(arrays, field))


def test_a_missing_image_gives_one_error_and_no_cache(tmp_path, monkeypatch):
    expect_counts(monkeypatch, write_folder(tmp_path))
    folder = tmp_path / "isic2018"
    sorted(folder.rglob("*.jpg"))[3].unlink()
    message = r"isic2018-250-224: a file in .*isic2018 is damaged .*1 of 10 images are missing, first ISIC_\d+.jpg"
    with pytest.raises(DataError, match=message):
        ISIC2018(data_dir=str(tmp_path)).read()
    assert not list(tmp_path.glob("*.npz"))
