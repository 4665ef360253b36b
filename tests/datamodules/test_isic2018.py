"""ISIC 2018: the folder as published, its split, sizes, and damage."""

import hashlib
import random

import numpy as np
import pytest
from PIL import Image

from datamodules import isic2018
from datamodules.common.errors import DataError
from datamodules.digits import Digits
from datamodules.io import sources
from datamodules.isic2018 import ISIC2018


@pytest.mark.parametrize(
    ("options", "sizes"), [({}, (250, 224)), ({"side": 448}, (500, 448)), ({"side": 112, "zoom": 120}, (120, 112))]
)
def test_dermatoscopic_images_are_decoded_once_at_the_size_that_is_cut(options, sizes, monkeypatch):
    """600 x 450 pixels are not shrunk below what the crop needs, then enlarged again."""
    asked = []
    monkeypatch.setattr(isic2018, "load", lambda name, *_, **__: asked.append(name) or Digits().read())
    data = ISIC2018(**options)
    data.read()
    assert asked == ["isic2018-{}-{}".format(*sizes)]
    assert data.views["weak"].geometry.side == sizes[0]


SMALL = {"side": 22, "zoom": 25}


def read(folder, **options):
    return ISIC2018(data_dir=str(folder), **options).read()


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


def test_split_sizes_and_order():
    train, test = isic2018.split(10015)
    assert (len(train), len(test)) == (8012, 2003)
    assert sorted(train + test) == list(range(10015))
    random.seed(1337)  # the recipe as published: the module's own generator
    rows = list(range(10015))
    random.shuffle(rows)
    assert train + test == rows


@pytest.mark.parametrize(("name", "suffix"), [("HAM10000_metadata.csv", ".jpg"), ("HAM10000_metadata", ".JPG")])
def test_a_folder_as_published(tmp_path, monkeypatch, name, suffix):
    """One of the folders of images is behind a link."""
    rows = write_folder(tmp_path, name=name, suffix=suffix)
    part = tmp_path / "isic2018" / "HAM10000_images_part_2"
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    expect_counts(monkeypatch, rows)
    arrays = read(tmp_path, **SMALL)
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
    again = read(tmp_path, **SMALL)
    for field in ("train_images", "train_labels", "test_images", "test_labels", "class_names"):
        np.testing.assert_array_equal(getattr(again, field), getattr(arrays, field))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder, image: image.unlink(), r"1 of 10 images are missing, first ISIC_\d+.jpg"),
        (
            lambda folder, image: (folder / "HAM10000_metadata.csv").write_text(
                "image_id,dx\n" + f"{image.stem},cat\n" * 5
            ),
            "ValueError",
        ),
    ],
)
def test_damaged_folders_give_one_error_and_no_cache(tmp_path, monkeypatch, damage, message):
    expect_counts(monkeypatch, write_folder(tmp_path))
    folder = tmp_path / "isic2018"
    damage(folder, sorted(folder.rglob("*.jpg"))[3])
    with pytest.raises(DataError, match=rf"isic2018-250-224: a file in .*isic2018 is damaged .*{message}"):
        read(tmp_path)
    assert not list(tmp_path.glob("*.npz"))
