import gzip
import hashlib
import pickle
import struct
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from datamodules import fashion_mnist, mnist
from datamodules.cifar10 import CIFAR10
from datamodules.cifar100 import CIFAR100
from datamodules.common.errors import DataError
from datamodules.digits import Digits
from datamodules.fashion_mnist import FashionMNIST
from datamodules.io import sources
from datamodules.mnist import MNIST
from datamodules.svhn import SVHN


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
    for field in sources.STORED:
        np.testing.assert_array_equal(getattr(arrays, field), expected[field])
    assert arrays.class_names == tuple(expected["class_names"])


# --- cache


@pytest.mark.usefixtures("counts")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), "BadZipFile"),
        (lambda path: save(path, test_labels=None), "KeyError: .*test_labels"),
        (lambda path: save(path, class_names=("a", "b")), r"train labels must lie in 0\.\.1"),
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
    message = r"the training and test images per class are \(\(2, 2, 2\).* instead of \(\(4948"
    with pytest.raises(DataError, match=message):
        reading(SVHN, tmp_path)


# --- usual files


def write_cifar(root, monkeypatch, kind=datasets.CIFAR10):
    """Write `content` in CIFAR's layout and make torchvision expect these files."""
    data, fine = content(), kind is datasets.CIFAR100
    folder = Path(root) / kind.base_folder
    folder.mkdir(parents=True)
    names = ["train"] if fine else [f"data_batch_{number}" for number in range(1, 6)]
    cuts = dict(zip(names, np.array_split(np.arange(6), len(names)), strict=True))
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


def publish(monkeypatch):
    """Make the content that ``write_mnist`` writes the published one of MNIST."""
    with TemporaryDirectory() as folder:
        for file in write_mnist(folder):
            monkeypatch.setitem(mnist.MD5, file.name.removesuffix("-ubyte"), md5(file))


def write_mnist(folder, compress=False):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for part, name in (("train", "train"), ("test", "t10k")):
        images = pictures(6 if part == "train" else 3, 28, 28, 1, seed=3)
        for kind, values in (
            ("images-idx3", images[..., 0]),
            ("labels-idx1", content()[f"{part}_labels"].astype(np.uint8)),
        ):
            data = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()
            files.append(folder / f"{name}-{kind}-ubyte{'.gz' if compress else ''}")
            files[-1].write_bytes(gzip.compress(data) if compress else data)
    return sorted(files)


@pytest.mark.usefixtures("counts", "offline")
@pytest.mark.parametrize(
    ("cls", "write", "names"),
    [
        (CIFAR10, write_cifar, "abc"),
        (CIFAR100, partial(write_cifar, kind=datasets.CIFAR100), "abc"),
        (SVHN, write_svhn, "0123456789"),  # digit 0 has another label in the file
    ],
)
def test_files_that_torchvision_reads(tmp_path, monkeypatch, cls, write, names):
    files = write(tmp_path, monkeypatch)
    arrays = reading(cls, tmp_path)
    assert_same(arrays, content(class_names=names))
    assert arrays.sha256 == {file.name: digest(file) for file in files}
    assert not list(tmp_path.glob("*.npz"))  # fast to decode: nothing is written
    files[0].write_bytes(files[0].read_bytes() + b" ")
    with pytest.raises(DataError, match=r"a file in .* is damaged .*RuntimeError: .*corrupted.*Provide an intact copy"):
        reading(cls, tmp_path)


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
    *intact, damaged = files
    damaged.write_bytes(damaged.read_bytes()[:-2] if compress else b"\0\0\1\3" * 9)
    with pytest.raises(DataError, match=rf"a file in {damaged.parent} is damaged .*: {damaged.name}: ") as info:
        reading(cls, tmp_path)
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


@pytest.mark.usefixtures("counts")
@pytest.mark.parametrize("cls", [CIFAR10, SVHN, FashionMNIST, MNIST])
def test_a_download_is_decoded_into_the_cache_alone(tmp_path, monkeypatch, cls, request):
    publish(monkeypatch)
    for module, name, write in (
        (datasets.cifar, "download_and_extract_archive", lambda url, root, **_: write_cifar(root, monkeypatch)),
        (datasets.svhn, "download_url", lambda url, root, *_: write_svhn(root, monkeypatch)),
        (datasets.mnist, "download_and_extract_archive", lambda url, download_root, **_: write_mnist(download_root)),
    ):
        monkeypatch.setattr(module, name, write)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", str(tmp_path / "not installed"))
    folder = tmp_path / "new" / "data"
    first = reading(cls, folder)
    cache = folder / f"{cls.__module__.split('.')[-1]}.npz"
    assert list(folder.glob("[!.]*")) == [cache]
    assert first.sha256 == {cache.name: digest(cache)}
    assert first.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert reading(cls, tmp_path / "other").sha256 == first.sha256  # equal arrays, equal bytes
    request.getfixturevalue("offline")
    second = reading(cls, folder)
    assert second.sha256 == first.sha256
    assert_same(second, {field: getattr(first, field) for field in sources.FIELDS})


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
