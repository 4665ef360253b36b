"""Images of a user: one .npz file, or a folder per class, made of scikit-learn's digits."""

import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from benchmark.launch.run import fit as run
from benchmark.runs.records import read_record
from datamodules.cifar10 import CIFAR10
from datamodules.common.errors import ConfigError, DataError, RunError
from datamodules.folder import Folder
from datamodules.io import npz
from datamodules.npz import Npz
from runs import SHORT, configuration, interrupted

SHAPED = {"num_clients": 3, "min_size": 0}
NAMES = ("nought", "one", "two")


@pytest.fixture(scope="module")
def digits():
    """20 images of each of three digits, 8 x 8, by class."""
    found = load_digits()
    keep = np.concatenate([np.flatnonzero(found.target == c)[:20] for c in range(3)])
    return (found.images[keep] * 15).astype(np.uint8), found.target[keep]


def halves(images, labels):
    return {
        "train_images": images[::2],
        "train_labels": labels[::2],
        "test_images": images[1::2],
        "test_labels": labels[1::2],
    }


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_folder(root, images, labels, suffix="png"):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = root / NAMES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:03}.{suffix}")


@pytest.fixture
def pictures(here, digits):
    """``pictures/train`` and ``pictures/test``."""
    images, labels = digits
    for start, part in enumerate(("train", "test")):
        save_folder(here / "pictures" / part, images[start::2], labels[start::2])
    return here / "pictures"


def ready(kind, **options):
    data = kind(data_dir="data", **SHAPED, **options)
    data.setup()
    return data


# --- npz


def test_arrays_are_read_and_measured(here, digits):
    """Classes, side, channels, mean and deviation are those of the training images."""
    np.savez("x.npz", **halves(*digits), class_names=NAMES)
    data, train = ready(Npz, file="x.npz"), digits[0][::2]
    assert (data.num_classes, data.image_size, data.class_names) == (3, 8, NAMES)
    assert data.mean == pytest.approx((train.mean() / 255,), abs=1e-6)
    assert data.std == pytest.approx((train.std() / 255,), abs=1e-6)
    assert data.provenance["measured"]["image_shape"] == [8, 8, 1] and data.provenance["measured"]["train_images"] == 30
    _, block = next(data.test_blocks(30))
    seen = (torch.from_numpy(digits[0][1::2]) / 255 - data.mean[0]) / data.std[0]
    assert torch.allclose(block(), seen[:, None].expand(-1, 3, -1, -1), atol=1e-4)
    assert data.test_labels.tolist() == digits[1][1::2].tolist()


def test_colours_columns_of_labels_and_the_data_directory(here, digits):
    """As MedMNIST's files: colour, labels [N, 1]; the file in the data directory comes first."""
    images, labels = digits
    colour = np.stack([images, images // 2, np.full_like(images, 9)], axis=-1)
    np.savez("x.npz", wrong=1)
    (here / "data").mkdir()
    np.savez("data/x.npz", **halves(colour, labels[:, None].astype(np.uint8)))
    data = ready(Npz, file="x.npz", side=16)
    assert (data.num_classes, data.image_size, len(data.mean), data.class_names) == (3, 16, 3, ("0", "1", "2"))
    assert data.std[2] == 1.0  # one value everywhere
    assert data.take("weak", torch.arange(4), torch.Generator().manual_seed(0)).shape == (4, 3, 16, 16)


def test_without_a_test_part_the_same_share_of_each_class_is_held_out(here, digits):
    images, labels = digits
    np.savez("x.npz", train_images=images, train_labels=labels)
    first, again, other = (
        Npz(file="x.npz", test_fraction=f, run_seed=s).read() for f, s in ((0.3, 1), (0.3, 2), (0.1, 1))
    )
    assert np.bincount(first.test_labels).tolist() == [6] * 3 and np.bincount(first.train_labels).tolist() == [14] * 3
    assert (first.test_images == again.test_images).all() and (first.train_labels == again.train_labels).all()
    assert np.bincount(other.test_labels).tolist() == [2] * 3
    for share in (0.0, 1.0):
        with pytest.raises(ConfigError, match="test_fraction"):
            Npz(file="x.npz", test_fraction=share)
    together = np.concatenate([first.train_images, first.test_images])[..., 0]
    assert sorted(map(bytes, together)) == sorted(map(bytes, images))


BAD_ARRAYS = [
    ("train_labels", lambda labels: None, "has no train_labels"),
    ("train_images", lambda images: images / 255, r"float64 \[30, 8, 8\]"),
    ("train_images", lambda images: np.stack([images] * 3, axis=1), r"\[N, H, W, 1 or 3\], .*uint8 \[30, 3, 8, 8\]"),
    (
        "train_images",
        lambda images: images.astype(object),
        r"cannot be read as \.npz.*pickle.*savez; text needs \.astype",
    ),
    ("train_labels", lambda labels: labels[1:], r"one integer per image.*int64 \[29\]"),
    ("test_labels", lambda labels: labels + 1, r"test labels must lie in 0\.\.2.*1\.\.3"),
    ("train_labels", lambda labels: labels * 2, "class 1 has no training image"),
    ("train_labels", lambda labels: labels + 10**12, r"must lie in 0\.\.30, .*1000000000002"),
    ("train_labels", lambda labels: labels - 2, r"must lie in 0\.\.0, .*-2\.\.0"),
    ("train_labels", lambda labels: np.array([*labels[1:], 2**64 - 1], np.uint64), str(2**64 - 1)),  # as int64, -1
    ("train_labels", lambda labels: np.where(labels, labels, np.nan), r"one integer per image.*float64 \[30\]"),
    ("unlabelled_images", lambda images: images / 255, r"one type and size.*float64 \[4, 8, 8\].*uint8 \[30, 8,"),
    ("unlabelled_images", lambda images: np.stack([images] * 3, axis=-1), r"one type and size.*uint8 \[4, 8, 8, 3\]"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), BAD_ARRAYS)
def test_bad_arrays_are_refused(name, spoil, message, here, digits):
    """One message that names the file and what is wrong with it."""
    arrays = halves(*digits)
    spoilt = spoil(arrays.pop(name, digits[0][:4]))
    np.savez("x.npz", **arrays, **({} if spoilt is None else {name: spoilt}))
    with pytest.raises(DataError, match=rf"^x\.npz.*{message}"):
        ready(Npz, file="x.npz")


@pytest.mark.parametrize("options", [{}, {"side": 12}])
def test_a_border_makes_the_networks_input_larger(options, pictures, digits):
    """The same pixels from a file and from a folder, black around them; the network may see one channel."""
    np.savez("x.npz", **halves(*digits), class_names=NAMES)
    for kind, place in ((Npz, {"file": "x.npz"}), (Folder, {"root": "pictures"})):
        data = ready(kind, **place, **options, border=2, mean=[0.5], std=[1 / 255], channels=1)
        _, block = next(data.test_blocks(30))
        seen = block() + 127.5
        assert data.image_size == 12 and seen.shape == (30, 1, 12, 12)
        assert torch.allclose(seen[:, 0, 2:-2, 2:-2], torch.from_numpy(digits[0][1::2]).float(), atol=1e-3)
        assert max(seen[:, :, :2].abs().max(), seen[..., -2:].abs().max()) < 1e-3
        assert data.take("weak", torch.arange(4), torch.Generator().manual_seed(0)).shape == (4, 1, 12, 12)


def test_a_missing_file(here):
    with pytest.raises(DataError, match=r"data\.file=x\.npz does not exist: looked for .*data/x\.npz and .*x\.npz"):
        ready(Npz, file="x.npz")


@pytest.mark.parametrize(("kind", "options"), [(Npz, {"file": "cifar10.npz"}), (CIFAR10, {})])
def test_arrays_that_do_not_fit_into_memory_are_refused_before_they_are_read(kind, options, here, digits, monkeypatch):
    np.savez_compressed("cifar10.npz", **halves(*digits))
    monkeypatch.setattr(npz, "available_bytes", lambda: 4_500)  # more than the file has, less than its arrays take
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ConfigError, match=r"cifar10\.npz: .* GB are free"):
        kind(data_dir=".", **options).read()


# --- folder


def test_a_folder_is_read_as_the_same_arrays_in_a_file(pictures, digits):
    """Grey PNG files give the pixels and constants that the arrays give, and are decoded once."""
    np.savez("x.npz", **halves(*digits), class_names=NAMES)
    data, same = ready(Folder, root="pictures"), ready(Npz, file="x.npz")
    assert (data.class_names, data.mean, data.std, data.image_size) == (same.class_names, same.mean, same.std, 8)
    assert data.partition.hash == same.partition.hash
    assert (data.train_images == same.train_images).all() and (data.test_images == same.test_images).all()
    (cache,) = pictures.parent.glob("data/folder-*.npz")
    before = cache.stat().st_mtime_ns
    again = ready(Folder, root="pictures")
    assert again.sha256 == data.sha256 and list(data.sha256) == ["pictures"]
    assert cache.stat().st_mtime_ns == before and (again.train_images == data.train_images).all()


def test_an_unsplit_folder_of_several_sizes_and_colours(here, digits):
    """``side`` brings JPEG files of all sizes to one; a share of each class is held out; each choice has a cache."""
    images, labels = digits
    save_folder(here / "mine", images, labels, "jpg")
    Image.new("RGB", (20, 30), "red").save(here / "mine" / "two" / "large.JPEG")
    with pytest.raises(DataError, match=r"large\.JPEG has 20 x 30 pixels, the images before it 8 x 8; give --data\.si"):
        ready(Folder, root="mine")
    for side, share, held in ((16, 0.2, 4), (16, 0.3, 6), (8, 0.3, 6)):
        data = ready(Folder, root="mine", side=side, test_fraction=share)
        assert data.provenance["measured"]["image_shape"] == [side, side, 3] and data.image_size == side
        assert np.bincount(data.test_labels).tolist() == [held] * 3


def test_hidden_files_and_folders_are_no_images(pictures):
    """Notebooks and file browsers keep copies in them, which would count twice."""
    before = ready(Folder, root="pictures")
    one = pictures / "train" / "one"
    (one / ".ipynb_checkpoints").mkdir()
    (one / "more").mkdir()
    for copy in (one / ".ipynb_checkpoints" / "010-checkpoint.png", one / "._010.png"):
        shutil.copy(one / "010.png", copy)
    assert ready(Folder, root="pictures").sha256 == before.sha256
    (one / "010.png").rename(one / "more" / "010.png")
    assert len(ready(Folder, root="pictures").train_labels) == len(before.train_labels)


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_decoded(pictures):
    with pytest.raises(ConfigError, match=r"at side 1000000 \(data\.side\): .* would take 60,000 GB of memory"):
        ready(Folder, root="pictures", side=1_000_000)
    assert not list(pictures.parent.glob("data/folder-*"))


def truncated(root):
    file = root / "test" / "one" / "010.png"
    file.write_bytes(file.read_bytes()[:60])


def deep_colours(root):
    """A PNG file with 16 bits per channel, which Pillow reads as RGB and cannot write."""

    def chunk(name, content):
        whole = name + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    head, lines = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0), zlib.compress(bytes(8 * (1 + 8 * 6)))
    content = chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
    (root / "train" / "two" / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)


BAD_FOLDERS = [
    (truncated, r"test/one/010\.png cannot be read as an image"),
    (deep_colours, r"deep\.png has .*more than 8 bits"),
    # Pillow would hand it to Ghostscript, which carries out what is in it.
    (lambda root: Image.new("L", (8, 8)).save(root / "train/two/x.png", "EPS"), r"x\.png cannot be read .*identify"),
    (lambda root: (root / "train/three").mkdir(), r"train/three has no images \(\.png, \.jpg, \.jpeg\)"),
    (lambda root: (root / "test/one").rename(root / "test/eins"), r"same classes; only one has 'eins', 'one'"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD_FOLDERS)
def test_bad_folders_are_refused(spoil, message, pictures):
    """One message that names the file or folder; no cache is left."""
    spoil(pictures)
    with pytest.raises(DataError, match=rf"^\S*pictures.*{message}|^pictures {message}"):
        ready(Folder, root="pictures")
    assert not list(pictures.parent.glob("data/folder-*"))


# --- runs


def test_a_run_is_one_of_these_images(pictures, digits):
    """A stopped run does not go on with others, a complete one is not taken for that of others; both name the digests.

    Without the images a record still counts.
    """
    options = {"data": "folder", "data__root": "pictures", "data__num_clients": 3, "data__min_size": 0}
    config = configuration("results", **SHORT, data__partition="dirichlet", model="mlp", **options)

    def change(images):
        save_folder(pictures / "train", images[::2], digits[1][::2])

    interrupted(config, 1)
    change(255 - digits[0])
    with pytest.raises(RunError, match="cannot resume, data_sha256 was"):
        run(config)
    change(digits[0])
    path = run(config)
    record = (path / "record.json").read_bytes()
    assert read_record(path)["final"]["round"] == 1
    change(255 - digits[0])
    with pytest.raises(ConfigError, match=r"pictures has changed since .*results/runs/.* delete that folder"):
        run(config)
    change(digits[0])
    assert run(config) == path
    shutil.rmtree(pictures)
    assert run(config) == path and (path / "record.json").read_bytes() == record
