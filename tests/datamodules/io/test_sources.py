import dataclasses
import gzip
import hashlib
import pickle
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision import datasets

from datamodules import fashion_mnist, mnist
from datamodules.cifar10 import CIFAR10
from datamodules.cifar100 import CIFAR100
from datamodules.common.errors import DataError
from datamodules.digits import Digits
from datamodules.fashion_mnist import FashionMNIST
from datamodules.io import sources
from datamodules.io.sources import Arrays
from datamodules.mnist import MNIST
from datamodules.svhn import SVHN

CACHE_FIELDS = ("train_images", "train_labels", "test_images", "test_labels", "class_names")


def name_of(cls):
    return cls.__module__.split(".")[-1]


def reading(cls, folder):
    return cls(data_dir=str(folder)).read()


def pictures(count, height=32, width=32, channels=3, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (count, height, width, channels), dtype=np.uint8)


def content(**changes):
    return {
        "train_images": pictures(6),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": pictures(3, seed=1),
        "test_labels": np.array([2, 1, 0]),
        "class_names": ("a", "b", "c"),
        **changes,
    }


def save(path, **changes):
    np.savez(path, **{key: np.asarray(value) for key, value in content(**changes).items() if value is not None})


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def counts(monkeypatch):
    """Make the six training and three test images of `content` the published size of every data set."""
    for name in sources.CLASS_COUNTS:
        monkeypatch.setitem(sources.CLASS_COUNTS, name, ((2, 2, 2), (1, 1, 1)))


@pytest.fixture
def offline(monkeypatch):
    """Fail every download at once, as without a network."""

    def refuse(*args, **kwargs):
        raise OSError("no network")

    for module in (datasets.cifar, datasets.mnist):
        monkeypatch.setattr(module, "download_and_extract_archive", refuse)
    monkeypatch.setattr(datasets.svhn, "download_url", refuse)


def assert_same(arrays, expected):
    for field in CACHE_FIELDS[:4]:
        np.testing.assert_array_equal(getattr(arrays, field), expected[field])
    assert arrays.class_names == tuple(expected["class_names"])


# --- Arrays


VECTORS = {"train_images": np.ones((6, 1, 5), np.float32), "test_images": np.ones((3, 1, 6), np.float32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": pictures(6).astype(float)}, r"train images must be uint8 .*float64 \[6, 32, 32, 3\]"),
        ({"train_images": pictures(6).transpose(0, 3, 1, 2)}, r"\[N, H, W, 1 or 3\], or .*uint8 \[6, 3, 32, 32\]"),
        ({"train_labels": np.zeros(5, int)}, r"train labels one integer per image; .*int64 \[5\]"),
        ({"test_labels": np.array([0, 1, 3])}, "test labels must lie in 0..2, the class names; they lie in 0..3"),
        (VECTORS, r"both feature vectors of one length; they are float32 \[6, 1, 5\] and float32 \[3, 1, 6\]"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        Arrays(**content(**changes), sha256={})


# --- cache


@pytest.mark.usefixtures("counts", "offline")
@pytest.mark.parametrize("cls", [CIFAR10, CIFAR100, SVHN, FashionMNIST, MNIST])
def test_the_cache_comes_first(tmp_path, cls):
    path = tmp_path / f"{name_of(cls)}.npz"
    save(path, train_labels=np.array([0, 1, 2, 0, 1, 2], np.int16))
    arrays = reading(cls, tmp_path)
    assert_same(arrays, content())
    assert arrays.sha256 == {path.name: digest(path)}
    assert torch.from_numpy(arrays.train_images).shape == (6, 32, 32, 3)


@pytest.mark.usefixtures("counts")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), "BadZipFile"),
        (lambda path: path.write_bytes(b""), "BadZipFile"),
        (lambda path: save(path, test_labels=None), "KeyError: .*test_labels"),
        (lambda path: save(path, class_names=("a", "b")), r"train labels must lie in 0\.\.1"),
        (lambda path: save(path, class_names=np.array(["a", "b", None])), "ValueError: Object arrays"),
        (
            lambda path: save(path, train_labels=np.array([0, 0, 0, 0, 1, 2])),
            r"\(\(4, 1, 1\), \(1, 1, 1\)\) instead of",
        ),
    ],
)
def test_a_damaged_cache_gives_one_error(tmp_path, damage, message):
    path = tmp_path / "cifar10.npz"
    save(path)
    damage(path)
    with pytest.raises(DataError, match=rf"cifar10: .*cifar10.npz is damaged .*{message}.*or delete it") as info:
        reading(CIFAR10, tmp_path)
    assert "DataError" not in str(info.value) and "ArraysError" not in str(info.value)


def test_a_part_of_a_data_set_is_not_taken_for_the_whole(tmp_path):
    save(tmp_path / "svhn.npz")
    with pytest.raises(
        DataError, match=r"the training and test images per class are \(\(2, 2, 2\).* instead of \(\(4948"
    ):
        reading(SVHN, tmp_path)


def test_a_data_set_of_ones_own_may_have_any_size(tmp_path):
    save(tmp_path / "mine.npz")
    assert_same(sources.load("mine", tmp_path, [], None, "Bring it"), content())
    save(tmp_path / "mine.npz", test_labels=None)
    with pytest.raises(DataError, match=r"mine: .*is damaged.*KeyError: .*test_labels"):
        sources.load("mine", tmp_path, [], None, "Bring it")


# --- usual files


def write_cifar(root, monkeypatch, kind=datasets.CIFAR10):
    """Write `content` in CIFAR's layout and make torchvision expect these files."""
    data, fine = content(), kind is datasets.CIFAR100
    folder = Path(root) / kind.base_folder
    folder.mkdir(parents=True)
    cuts = (
        {"train": slice(0, 6)}
        if fine
        else {
            f"data_batch_{i + 1}": slice(start, stop)
            for i, (start, stop) in enumerate([(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)])
        }
    )
    test = "test" if fine else "test_batch"
    for name, images, labels in [
        *((name, data["train_images"][cut], data["train_labels"][cut]) for name, cut in cuts.items()),
        (test, data["test_images"], data["test_labels"]),
    ]:
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        entry = {"data": rows, "fine_labels" if fine else "labels": labels.tolist(), "coarse_labels": [0]}
        (folder / name).write_bytes(pickle.dumps(entry))
    meta = folder / kind.meta["filename"]
    meta.write_bytes(pickle.dumps({kind.meta["key"]: list(data["class_names"])}))
    monkeypatch.setattr(kind, "train_list", [[name, md5(folder / name)] for name in cuts])
    monkeypatch.setattr(kind, "test_list", [[test, md5(folder / test)]])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(meta)})
    return sorted(folder.iterdir())


def write_svhn(root, monkeypatch):
    root, data = Path(root), content()
    splits = {"extra": datasets.SVHN.split_list["extra"]}
    for part in ("train", "test"):
        path = root / f"{part}_32x32.mat"
        labels = np.where(data[f"{part}_labels"] == 0, 10, data[f"{part}_labels"])
        savemat(path, {"X": data[f"{part}_images"].transpose(1, 2, 3, 0), "y": labels[:, None].astype(np.uint8)})
        splits[part] = [f"nowhere/{path.name}", path.name, md5(path)]
    monkeypatch.setattr(datasets.SVHN, "split_list", splits)
    return [root / "test_32x32.mat", root / "train_32x32.mat"]


def idx(values):
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def publish(monkeypatch):
    """Make the content that ``write_mnist`` writes the published one of MNIST."""
    with TemporaryDirectory() as folder:
        for file in write_mnist(Path(folder), False):
            monkeypatch.setitem(mnist.MD5, file.name.removesuffix("-ubyte"), md5(file))


def write_mnist(folder, compress):
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for part, name in (("train", "train"), ("test", "t10k")):
        images = pictures(6 if part == "train" else 3, 28, 28, 1, seed=3)
        for kind, values in (
            ("images-idx3", images[..., 0]),
            ("labels-idx1", content()[f"{part}_labels"].astype(np.uint8)),
        ):
            data = idx(values)
            files.append(folder / f"{name}-{kind}-ubyte{'.gz' if compress else ''}")
            files[-1].write_bytes(gzip.compress(data) if compress else data)
    return sorted(files)


@pytest.mark.usefixtures("counts", "offline")
@pytest.mark.parametrize(("cls", "kind"), [(CIFAR10, datasets.CIFAR10), (CIFAR100, datasets.CIFAR100)])
def test_cifar_files(tmp_path, monkeypatch, cls, kind):
    files = write_cifar(tmp_path, monkeypatch, kind)
    arrays = reading(cls, tmp_path)
    assert_same(arrays, content())
    assert arrays.sha256 == {file.name: digest(file) for file in files}
    assert not list(tmp_path.glob("*.npz"))  # fast to decode: nothing is written
    files[0].write_bytes(files[0].read_bytes() + b" ")
    with pytest.raises(
        DataError, match=rf"{kind.base_folder}.* is damaged .*RuntimeError: .*corrupted.*Provide an intact copy"
    ):
        reading(cls, tmp_path)


@pytest.mark.usefixtures("counts", "offline")
def test_svhn_files_and_its_digit_zero(tmp_path, monkeypatch):
    files = write_svhn(tmp_path, monkeypatch)
    arrays = reading(SVHN, tmp_path)
    assert_same(arrays, content(class_names="0123456789"))
    assert arrays.sha256 == {file.name: digest(file) for file in files}


@pytest.mark.usefixtures("counts", "offline")
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("cls", "folder"), [(MNIST, "MNIST"), (FashionMNIST, "FashionMNIST")])
def test_mnist_files(tmp_path, monkeypatch, cls, folder, compress):
    files = write_mnist(tmp_path / folder / "raw", compress)
    if folder == "MNIST":
        with pytest.raises(DataError, match=r"mnist: .*train-images-idx3-ubyte.*MD5 .* instead of 6bbc9ace"):
            reading(cls, tmp_path)
        publish(monkeypatch)
    arrays = reading(cls, tmp_path)
    np.testing.assert_array_equal(arrays.train_images, pictures(6, 28, 28, 1, seed=3))
    assert arrays.train_labels.tolist() == [0, 1, 2, 0, 1, 2] and arrays.test_labels.tolist() == [2, 1, 0]
    assert arrays.test_images.shape == (3, 28, 28, 1) and arrays.train_images.flags.writeable
    assert arrays.class_names[9] == {"MNIST": "9", "FashionMNIST": "Ankle boot"}[folder]
    assert arrays.sha256 == {file.name: digest(file) for file in files}
    files[0].write_bytes(gzip.compress(b"\0\0\1\3" * 9) if compress else b"\0\0\1\3" * 9)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*(not an IDX file|has the MD5)"):
        reading(cls, tmp_path)


@pytest.mark.usefixtures("counts", "offline")
@pytest.mark.parametrize("compress", [False, True])
def test_the_damaged_one_of_four_files_is_named(tmp_path, compress):
    """The first one was, whichever was damaged, and the user was told to delete it."""
    files = write_mnist(tmp_path / "FashionMNIST" / "raw", compress)
    damaged, *intact = sorted(files, key=lambda file: "t10k-labels" not in file.name)
    damaged.write_bytes(damaged.read_bytes()[:-2])
    with pytest.raises(DataError, match=rf"a file in {damaged.parent} is damaged .*: {damaged.name}: \w+Error") as info:
        reading(FashionMNIST, tmp_path)
    assert not any(file.name in str(info.value) for file in intact)


def test_the_digests_are_those_of_the_published_files():
    """Entered twice: with a wrong digit in one, the real files were refused."""
    published = {
        "train-images-idx3": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1": "27ae3e4e09519cfbb04c329615203637",
    }
    assert published == mnist.MD5


# --- download


def fake_downloads(monkeypatch):
    publish(monkeypatch)
    monkeypatch.setattr(
        datasets.cifar, "download_and_extract_archive", lambda url, root, **_: write_cifar(root, monkeypatch)
    )
    monkeypatch.setattr(datasets.svhn, "download_url", lambda url, root, *_: write_svhn(root, monkeypatch))
    monkeypatch.setattr(
        datasets.mnist,
        "download_and_extract_archive",
        lambda url, download_root, **_: write_mnist(Path(download_root), False),
    )


@pytest.mark.usefixtures("counts")
@pytest.mark.parametrize("cls", [CIFAR10, SVHN, FashionMNIST, MNIST])
def test_a_download_is_decoded_into_the_cache_alone(tmp_path, monkeypatch, cls):
    fake_downloads(monkeypatch)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", str(tmp_path / "not installed"))
    folder = tmp_path / "new" / "data"
    first = reading(cls, folder)
    cache = folder / f"{name_of(cls)}.npz"
    assert list(folder.glob("[!.]*")) == [cache]
    assert first.sha256 == {cache.name: digest(cache)}
    assert first.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
    second = reading(cls, folder)
    assert second.sha256 == first.sha256
    assert_same(second, {field: getattr(first, field) for field in CACHE_FIELDS})
    other = reading(cls, tmp_path / "other")
    assert other.sha256 == first.sha256  # equal arrays, equal bytes


@pytest.mark.usefixtures("offline")
def test_nothing_found_gives_one_error_with_places_reason_and_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN", "/nowhere/fashion-mnist")
    with pytest.raises(DataError, match="fashion_mnist was not found: looked for") as info:
        reading(FashionMNIST, tmp_path)
    places = [f"{tmp_path}/fashion_mnist.npz", "FashionMNIST/raw/train-images", "/nowhere/fashion-mnist/"]
    assert all(words in str(info.value) for words in [*places, "copy FashionMNIST", "no network"])
    assert not list(tmp_path.glob("[!.]*"))


# --- random split


def test_random_split_deals_all_images_out_anew():
    """Every image is on one side, 80 to 20, another way than published; the same seed gives the same split."""
    published = Digits().read()
    again, same = (sources.random_split(published, 7) for _ in range(2))
    assert len(again.train_labels) == int(0.8 * 1797)
    assert len(again.test_labels) == 1797 - int(0.8 * 1797)
    assert np.array_equal(again.train_images, same.train_images)
    assert not np.array_equal(again.test_labels, published.test_labels)

    def contents(arrays):
        images = np.concatenate([arrays.train_images, arrays.test_images]).reshape(1797, -1)
        labels = np.concatenate([arrays.train_labels, arrays.test_labels])
        return sorted(bytes(i) + bytes([k]) for i, k in zip(images, labels, strict=True))

    assert contents(again) == contents(published)


def test_random_split_needs_images_of_one_size():
    """ISIC's training and test images differ: its split is random already."""
    published = Digits().read()
    with pytest.raises(DataError, match="one size"):
        sources.random_split(dataclasses.replace(published, test_images=published.test_images[:, :16]), 0)
