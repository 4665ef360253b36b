"""Data sets from elsewhere: what may start, and how much of a file is read."""

from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from datamodules.cifar10 import CIFAR10
from datamodules.cinic10 import CINIC10
from datamodules.common.errors import BenchError, ConfigError, DataError
from datamodules.folder import Folder
from datamodules.io import npz
from datamodules.isic2018 import ISIC2018
from datamodules.npz import Npz

PICTURES = {Folder: "pictures/{}/one.png", CINIC10: "cinic10/{}/one.png", ISIC2018: "isic2018/one.jpg"}


def save(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(path, format=kind)


def write_pictures(root: Path, cls: type, kind: str) -> dict[str, str]:
    """The smallest folder of a data set, whose pictures are of another kind than their names say; its options."""
    for part in ("train", "test"):
        for name in ("a", "b"):
            save(root / PICTURES[cls].format(f"{part}/{name}"), kind)
    if cls is ISIC2018:
        (root / "isic2018" / "HAM10000_metadata").write_text("image_id,dx\n" + "one,mel\n" * 5)
    return {"root": "pictures"} if cls is Folder else {}


@pytest.mark.parametrize("cls", PICTURES)
@pytest.mark.parametrize("kind", ["EPS", "GIF"])
def test_pictures_are_png_or_jpeg_whatever_their_names_say(cls, kind, tmp_path, monkeypatch):
    """Pillow would hand an EPS file to Ghostscript, which carries out what is in it."""
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **_: started.append(args))
    options = write_pictures(tmp_path, cls, kind)
    with pytest.raises(DataError, match="cannot identify image file"):
        cls(data_dir=str(tmp_path), **options).read()
    assert not started


@pytest.mark.parametrize(("cls", "options"), [(Npz, {"file": "cifar10.npz"}), (CIFAR10, {})])
def test_arrays_that_do_not_fit_into_memory_are_refused_before_they_are_read(cls, options, tmp_path, monkeypatch):
    parts = {f"{part}_images": np.zeros((100, 32, 32, 3), np.uint8) for part in ("train", "test")}
    labels = {f"{part}_labels": np.arange(100) % 10 for part in ("train", "test")}
    np.savez_compressed(tmp_path / "cifar10.npz", **parts, **labels)
    monkeypatch.setattr(npz, "available_bytes", lambda: 600_000)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ConfigError, match=r"cifar10\.npz: .* GB are free"):
        cls(data_dir=str(tmp_path), **options).read()


@pytest.mark.parametrize("label", [2**64 - 1, 2**63, -2])
def test_labels_are_looked_at_before_their_type_is_changed(label, tmp_path):
    """As int64, 2^64 - 1 would be -1, and so on."""
    labels = np.array([0, 1, 0, label], np.int64 if label < 0 else np.uint64)
    images = np.random.RandomState(0).randint(0, 256, (4, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=labels)
    with pytest.raises(BenchError, match=str(label)):
        Npz(data_dir=str(tmp_path), file="x.npz").read()
