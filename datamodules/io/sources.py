"""Reading images from a cache, the data set's usual files or a download, as uint8 arrays."""

import csv
import gzip
import hashlib
import logging
import os
import random
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from datamodules.common.errors import ConfigError, DataError
from datamodules.common.files import made_once, read_bytes, regular
from datamodules.io.npz import read_npz, write_npz
from datamodules.partition.sites import HIDDEN

Folder = str | os.PathLike[str]
Images = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Content = tuple[Any, ...]
"""Training images and labels, test images and labels, the classes' names, and perhaps the training images' clients."""

FORMATS = ("PNG", "JPEG")
"""Pillow's formats that are opened, whatever a file is called: others, such as EPS, start programs."""

# Training and test images per class; other counts mean another data set, a subset, or reordered metadata.
CLASS_COUNTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "cifar10": ((5000,) * 10, (1000,) * 10),
    "cifar100": ((500,) * 100, (100,) * 100),
    "svhn": (
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    ),
    "fashion_mnist": ((6000,) * 10, (1000,) * 10),
    "mnist": (
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    "cinic10": ((9000,) * 10, (9000,) * 10),
    "isic2018": ((261, 425, 873, 88, 889, 5363, 113), (66, 89, 226, 27, 224, 1342, 29)),
}
DEBIAN_FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
MNIST_MD5 = {
    "train-images-idx3": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 of MNIST's unpacked files."""
ISIC_TRUTH = "ISIC2018_Task3_Training_GroundTruth.csv"
ISIC_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
FIELDS = ("train_images", "train_labels", "test_images", "test_labels", "class_names")
"""The arrays of a cache, and of ``Arrays``; a cache may have ``train_clients``, too."""

_log = logging.getLogger(__name__)


class ArraysError(DataError):
    """Arrays that make no data set; who reads them says where they come from."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """A decoded data set.

    Images are uint8 [N, H, W, C] with C = 1 or 3 (test images may have a different size from training images), or
    feature vectors float32 [N, V, d] in V versions of each sample (test samples may have fewer). Labels are int64 [N]
    below ``len(class_names)``; a training label may be ``HIDDEN``: nobody knows it. ``sha256`` maps the names of the
    files read to their digests. ``train_clients`` [N], if there are any, names the client of every training image by a
    number or a text; a negative number and ``""`` stand for none. ``notes`` tells users what was not read.

    Raises:
        ArraysError: the arrays do not match.
    """

    train_images: Images | Vectors
    train_labels: NDArray[np.int64]
    test_images: Images | Vectors
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    sha256: dict[str, str]
    train_clients: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(self.class_names))
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            pictures = images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] in (1, 3)
            vectors = images.dtype == np.float32 and images.ndim == 3
            one_each = labels.dtype.kind in "iu" and labels.shape == images.shape[:1]
            if not (pictures or vectors) or not images.size or not one_each:
                raise ArraysError(
                    f"{part} images must be uint8 [N, H, W, 1 or 3], or feature vectors float32 [N, versions, d], and "
                    f"{part} labels one integer per image; they are {_shape(images)} and {_shape(labels)}"
                )
            if labels.min() < (HIDDEN if part == "train" else 0) or not 0 <= labels.max() < len(self.class_names):
                raise ArraysError(
                    f"{part} labels must lie in 0..{len(self.class_names) - 1}, the class names; "
                    f"they lie in {labels.min()}..{labels.max()}"
                )
            if vectors and not np.isfinite(images).all():
                raise ArraysError(f"{part} features must be finite")
            object.__setattr__(self, f"{part}_images", np.ascontiguousarray(images))
            object.__setattr__(self, f"{part}_labels", labels.astype(np.int64, copy=False))
        train, test = self.train_images, self.test_images
        if train.ndim != test.ndim or (train.ndim == 3 and train.shape[2] != test.shape[2]):
            raise ArraysError(
                "training and test samples must both be images, or both feature vectors of one length; "
                f"they are {_shape(train)} and {_shape(test)}"
            )
        clients = self.train_clients
        if clients is not None and (clients.dtype.kind not in "iuU" or clients.shape != self.train_labels.shape):
            raise ArraysError(f"clients must be one number or text per training image; they are {_shape(clients)}")


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


@dataclass(frozen=True)
class FileLayout:
    """One layout of a data set's files on disk.

    Args:
        files: required files, absolute or relative to the data directory.
        read: decodes them, given the data directory and the files' paths.
        slow: decoding takes minutes, so the result is cached.
    """

    files: tuple[str, ...]
    read: Callable[[Path, list[Path]], Content]
    slow: bool = False


def load(
    name: str, data_dir: Folder, layouts: Sequence[FileLayout], fetch: Callable[[Path], object] | None, remedy: str
) -> Arrays:
    """Read ``<data_dir>/<name>.npz``, else the first complete layout, else download.

    The cache has the arrays ``FIELDS``. A download is only kept decoded, as this cache, and read back from it, so that
    all runs report the same digest. One process creates the cache while others wait.

    Args:
        name: name of the cache; the part before a ``-`` is the key in ``CLASS_COUNTS``. A data set without a key may
            have any number of images.
        data_dir: where to look and where to write the cache.
        layouts: the usual files; ``fetch`` produces the first layout.
        fetch: downloads into the given directory; None if there is no download.
        remedy: how a user can provide the files.

    Raises:
        ConfigError: the cache does not fit into memory.
        DataError: no files are found, or they are damaged or a different data set.
    """
    root, absent = Path(data_dir), []
    for layout in (_CACHE, *layouts):
        files = [root / file.format(name=name) for file in layout.files]
        missing = [file for file in files if not file.exists()]
        if missing:
            absent.append(str(missing[0]))
        elif layout.slow:
            return cached(name, data_dir, partial(_open, name, layout, root, files))
        else:
            return _open(name, layout, root, files)
    failure = "there is no download"
    if fetch is not None:
        try:
            return cached(name, data_dir, partial(_downloaded, name, layouts[0], fetch, root))
        except Exception as error:  # any error of network or disk is reported below
            failure = f"the download failed with {type(error).__name__}: {error}"
    raise DataError(f"{name} was not found: looked for {', '.join(absent)}; {failure}. {remedy} to {root.resolve()}")


def cached(name: str, data_dir: Folder, make: Callable[[], Arrays]) -> Arrays:
    """Read ``<data_dir>/<name>.npz``; if it does not exist, one process creates it with ``make``.

    Raises:
        ConfigError: the cache does not fit into memory.
        DataError: the cache cannot be written or is damaged; or raised by ``make``.
    """
    cache = Path(data_dir) / f"{name}.npz"

    def write() -> None:
        arrays = make()
        clients = {} if arrays.train_clients is None else {"train_clients": arrays.train_clients}
        write_npz(cache, {field: getattr(arrays, field) for field in FIELDS} | clients)
        _log.info("wrote %s", cache)

    made_once(cache, write)
    return _open(name, _CACHE, cache.parent, [cache])


def channel_moments(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation per channel of uint8 images [N, H, W, C], in [0, 1], to six digits.

    A constant channel gets deviation 1, since it cannot be scaled.
    """
    counts = np.zeros((images.shape[3], 256), dtype=np.int64)
    for start in range(0, len(images), 256):
        for channel, row in enumerate(counts):
            row += np.bincount(images[start : start + 256, ..., channel].ravel(), minlength=256)
    shares, values = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255
    means = shares @ values
    deviations = np.sqrt((shares * (values - means[:, None]) ** 2).sum(axis=1)).round(6)
    return tuple(means.round(6).tolist()), tuple(np.where(deviations > 0, deviations, 1.0).tolist())


def _downloaded(name: str, layout: FileLayout, fetch: Callable[[Path], object], root: Path) -> Arrays:
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)  # otherwise a firewall that drops packets blocks forever
    try:
        _log.info("downloading %s", name)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as folder:
            fetch(Path(folder))
            return _open(name, layout, Path(folder), [Path(folder, file) for file in layout.files])
    finally:
        socket.setdefaulttimeout(timeout)


def _open(name: str, layout: FileLayout, root: Path, files: list[Path]) -> Arrays:
    try:
        digests = {file.name: sha256_of(file) for file in files}  # first: a pipe would never end
        train_images, train_labels, test_images, test_labels, names, *clients = layout.read(root, files)
        arrays = Arrays(train_images, train_labels, test_images, test_labels, tuple(names), digests, *clients)
        known = arrays.train_labels[arrays.train_labels != HIDDEN]
        found = tuple(tuple(np.bincount(labels).tolist()) for labels in (known, arrays.test_labels))
        if found != (counts := CLASS_COUNTS.get(name.split("-")[0], found)):
            raise DataError(f"the training and test images per class are {found} instead of {counts}")
    except ConfigError:
        raise
    except Exception as error:  # each format's library has its own exceptions
        raise DataError(
            f"{name}: {files[0]} (file 1 of {len(files)}) is damaged or not the published data set: "
            f"{type(error).__name__}: {error}. Provide an intact copy, or delete it to try the other sources"
        ) from error
    return arrays


def _read_cache(root: Path, files: list[Path]) -> Content:
    data = read_npz(files[0], {*FIELDS, "train_clients"})
    return *(data[field] for field in FIELDS[:-1]), data["class_names"].tolist(), data.get("train_clients")


_CACHE = FileLayout(("{name}.npz",), _read_cache)


def files_below(place: Path) -> list[Path]:
    """All files below a folder, in the order of their paths, without hidden ones (``.name``).

    Links to folders are followed; a folder that is reached twice is entered once.
    """
    found: list[Path] = []
    entered: set[str] = set()
    for folder, inside, names in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        inside[:] = [] if real in entered else sorted(name for name in inside if not name.startswith("."))
        found += [] if real in entered else [Path(folder, name) for name in names if not name.startswith(".")]
        entered.add(real)
    return sorted(found)


def sha256_of(file: Path) -> str:
    """SHA-256 in hex of a regular file's bytes, or of the sorted names of the images in a folder."""
    if file.is_dir():
        names = sorted(str(image.relative_to(file)) for image in file.rglob("*.*"))
        return hashlib.sha256("\n".join(names).encode()).hexdigest()
    with open(file, "rb", opener=regular) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digits() -> Arrays:
    """Read scikit-learn's embedded handwritten digits, 1437 for training and 360 for testing, as 32x32x3 images.

    Grey levels 0..16 are mapped to 0..255, 8x8 pixels are enlarged to 32x32 (Pillow, bilinear). Sorted stably by class,
    every fifth image is a test image: a fixed, stratified split, in original order within both parts.
    """
    file = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))
    images, target, digest = _enlarged_digits(file)
    by_class = np.argsort(target, kind="stable")
    test = np.zeros(len(images), dtype=bool)
    test[by_class[np.arange(360) * len(images) // 360]] = True
    return Arrays(images[~test], target[~test], images[test], target[test], tuple("0123456789"), {file.name: digest})


@lru_cache(maxsize=1)  # a worker process carries out many runs
def _enlarged_digits(file: Path) -> tuple[Images, NDArray[np.int64], str]:
    """All images, uint8 [1797, 32, 32, 3], their classes, int64 [1797], and the SHA-256 of the file."""
    table = np.loadtxt(file, delimiter=",")
    pixels, target = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    small = np.rint(pixels * (255 / 16)).astype(np.uint8)
    images = np.stack([_square(Image.fromarray(image), 32) for image in small])
    return images, target, sha256_of(file)


def cifar10(data_dir: Folder) -> Arrays:
    """Read CIFAR-10, 50 000 + 10 000 images 32x32x3 in the order of the official batches."""
    files = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
    return _cifar("CIFAR10", "cifar-10-batches-py", files, data_dir)


def cifar100(data_dir: Folder) -> Arrays:
    """Read CIFAR-100 with its 100 fine labels, 50 000 + 10 000 images 32x32x3 in the official order."""
    return _cifar("CIFAR100", "cifar-100-python", ("train", "test", "meta"), data_dir)


def _cifar(kind: str, folder: str, files: tuple[str, ...], data_dir: Folder) -> Arrays:
    """The files are pickles: torchvision opens them only if their MD5 is the published one."""
    from torchvision import datasets

    make = getattr(datasets, kind)

    def read(root: Path, files: list[Path]) -> Content:
        train, test = make(root, train=True), make(root, train=False)
        return train.data, np.array(train.targets), test.data, np.array(test.targets), train.classes

    return load(
        kind.lower(),
        data_dir,
        [FileLayout(tuple(f"{folder}/{file}" for file in files), read)],
        lambda root: make(root, download=True),
        f"Run torchvision.datasets.{kind}('.', download=True) where there is a network and copy {folder}",
    )


def svhn(data_dir: Folder) -> Arrays:
    """Read SVHN's train and test images, 73 257 + 26 032 of 32x32x3, without "extra"; digit 0 is class 0."""
    from torchvision.datasets import SVHN

    def read(root: Path, files: list[Path]) -> Content:
        train, test = (SVHN(root, split) for split in ("train", "test"))
        images = [part.data.transpose(0, 2, 3, 1) for part in (train, test)]
        return images[0], train.labels, images[1], test.labels, "0123456789"

    return load(
        "svhn",
        data_dir,
        [FileLayout(("train_32x32.mat", "test_32x32.mat"), read)],
        lambda root: [SVHN(root, split, download=True) for split in ("train", "test")],
        "Run torchvision.datasets.SVHN('.', split, download=True) for the splits 'train' and 'test' where "
        "there is a network and copy the two .mat files",
    )


def mnist(data_dir: Folder) -> Arrays:
    """Read MNIST, 60 000 + 10 000 images 28x28x1 in original order; the files' content must be the published one."""
    return _mnist("MNIST", data_dir, tuple("0123456789"), list(MNIST_MD5.values()))


def fashion_mnist(data_dir: Folder) -> Arrays:
    """Read Fashion-MNIST, 60 000 + 10 000 images 28x28x1 in original order; also finds Debian's package."""
    from torchvision.datasets import FashionMNIST

    return _mnist("FashionMNIST", data_dir, FashionMNIST.classes, more=[DEBIAN_FASHION_MNIST + "/{}-ubyte.gz"])


def _mnist(
    kind: str,
    data_dir: Folder,
    classes: Sequence[str],
    md5: Sequence[str | None] = (None,) * len(MNIST_MD5),
    more: Sequence[str] = (),
) -> Arrays:
    """Read a data set in MNIST's four files, gzipped or not.

    Args:
        kind: torchvision's class, which downloads it.
        data_dir: see ``load``.
        classes: the classes' names.
        md5: MD5 of the files' content, where it is checked.
        more: where else a file may lie, with ``{}`` for the part.
    """
    from torchvision import datasets

    def read(root: Path, files: list[Path]) -> Content:
        train, train_labels, test, test_labels = map(_idx, files, md5)
        return train[..., None], train_labels, test[..., None], test_labels, classes

    places = [f"{kind}/raw/{{}}-ubyte", f"{kind}/raw/{{}}-ubyte.gz", *more]
    return load(
        kind.lower().replace("fashion", "fashion_"),
        data_dir,
        [FileLayout(tuple(place.format(part) for part in MNIST_MD5), read) for place in places],
        lambda root: getattr(datasets, kind)(root, download=True),
        f"Run torchvision.datasets.{kind}('.', download=True) where there is a network and copy {kind}",
    )


def _idx(file: Path, md5: str | None) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or not; its content must have the MD5, if one is given."""
    data = gzip.decompress(read_bytes(file)) if file.suffix == ".gz" else read_bytes(file)
    if md5 and (found := hashlib.md5(data, usedforsecurity=False).hexdigest()) != md5:
        raise DataError(f"the content of {file.name} has the MD5 {found} instead of {md5}")
    start, kind, axes = struct.unpack_from(">HBB", data)
    if (start, kind) != (0, 8):
        raise DataError(f"{file.name} is not an IDX file of bytes")
    shape = struct.unpack_from(f">{axes}I", data, 4)
    return np.frombuffer(bytearray(data), np.uint8, offset=4 + 4 * axes).reshape(shape)


def isic2018(data_dir: Folder, resize: int = 250, test_resize: int = 224) -> Arrays:
    """Read ISIC 2018 task 3 (HAM10000), 8 012 + 2 003 images, split by image as in RSCFed's published lists.

    Reads ``<data_dir>/isic2018``: HAM10000_metadata, with or without .csv, rows in the original order, and .jpg files
    in any subfolders. Images are resized to squares (Pillow, bilinear) of side ``resize`` for training and
    ``test_resize`` for testing, cached in ``<data_dir>/isic2018-<resize>-<test_resize>.npz``.

    Where there is only the challenge's ``ISIC2018_Task3_Training_GroundTruth.csv``, its rows are split in the same way.
    They are in another order, so the split is another one than RSCFed's, has a cache of its own (``isic2018_truth-``),
    and ``notes`` says so.
    """

    def read(root: Path, files: list[Path]) -> Content:
        rows = list(csv.DictReader(read_bytes(files[0]).decode().splitlines()))
        if files[0].name == ISIC_TRUTH:
            marked = list(map(_isic_truth, rows))
        else:
            marked = [(row["image_id"], ISIC_CLASSES.index(row["dx"])) for row in rows]
        ids, labels = [image for image, _ in marked], np.array([label for _, label in marked])
        images = {file.stem: file for file in files_below(files[0].parent) if file.suffix.lower() in (".jpg", ".jpeg")}
        missing = [image for image in ids if image not in images]
        if missing:
            raise DataError(f"{len(missing)} of {len(rows)} images are missing, first {missing[0]}.jpg")
        train, test = isic_split(len(rows))
        pictures = [images[image] for image in ids]
        return (
            squares([pictures[i] for i in train], resize),
            labels[train],
            squares([pictures[i] for i in test], test_resize),
            labels[test],
            ISIC_CLASSES,
        )

    places = [f"isic2018/HAM10000_metadata{suffix}" for suffix in (".csv", "")]
    name = f"isic2018-{resize}-{test_resize}"
    notes: tuple[str, ...] = ()
    cache, truth = Path(data_dir, f"{name}.npz"), Path(data_dir, "isic2018", ISIC_TRUTH)
    if truth.exists() and not any(Path(data_dir, place).exists() for place in (cache.name, *places)):
        name, places = name.replace("isic2018", "isic2018_truth"), [f"isic2018/{ISIC_TRUTH}"]
        notes = (f"{ISIC_TRUTH} has another order than HAM10000_metadata: not the split of the published lists",)
    arrays = load(
        name,
        data_dir,
        [FileLayout((place,), read, slow=True) for place in places],
        None,
        "Get HAM10000 (doi:10.7910/DVN/DBW86T, CC BY-NC 4.0), unpack HAM10000_metadata and both folders of "
        "images into a folder isic2018, and move it",
    )
    return replace(arrays, notes=notes)


def _isic_truth(row: Mapping[str, str]) -> tuple[str, int]:
    """Name and class of an image in the challenge's table, which has a column of 0.0 and 1.0 for each class.

    Raises:
        DataError: not exactly one class is marked.
    """
    marked = [float(row[name.upper()]) for name in ISIC_CLASSES]
    if sorted(marked) != [0.0] * 6 + [1.0]:
        raise DataError(f"{row['image']} must have one 1 and otherwise 0; it has {marked}")
    return row["image"], marked.index(1.0)


def random_split(arrays: Arrays, seed: int, share: float = 0.8) -> Arrays:
    """Merge training and test images and split them randomly by image (as RSCFed's text says for all data sets).

    Args:
        arrays: the published split.
        seed: seed of NumPy's legacy generator, called for one permutation.
        share: share of all images that becomes the training set, rounded down.

    Images without a label stay training images, behind the others.

    Raises:
        DataError: training and test images differ in size, or training images have clients and test images none.
    """
    if arrays.train_clients is not None:
        raise DataError(
            "a random split would give test images to clients that do not have them; keep data.split=official"
        )
    if arrays.train_images.shape[1:] != arrays.test_images.shape[1:]:
        raise DataError(
            f"a random split needs training and test images of one size, not {arrays.train_images.shape[1:]} and "
            f"{arrays.test_images.shape[1:]}; keep data.split=official"
        )
    images = np.concatenate([arrays.train_images, arrays.test_images])
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    known = np.flatnonzero(labels != HIDDEN)
    order = known[np.random.RandomState(seed).permutation(len(known))]
    train, test = np.split(order, [int(share * len(known))])
    return dealt(arrays, images, labels, np.append(train, np.flatnonzero(labels == HIDDEN)), test)


def dealt(arrays: Arrays, images: Images | Vectors, labels: NDArray[np.int64], train: Any, test: Any) -> Arrays:
    """The arrays with other images: those at the positions (or in the masks) ``train`` and ``test``."""
    return replace(
        arrays,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        train_clients=None if arrays.train_clients is None else arrays.train_clients[train],
    )


def isic_split(num_images: int) -> tuple[list[int], list[int]]:
    """Return the training and test rows of the metadata: a shuffle with Python's seed 1337, cut at 80 %.

    Source: the index lists published with RSCFed.
    """
    rows = list(range(num_images))
    random.Random(1337).shuffle(rows)
    return rows[: num_images * 4 // 5], rows[num_images * 4 // 5 :]


@contextmanager
def opened(file: Path) -> Iterator[ImageFile.ImageFile]:
    """Open a PNG or JPEG file; no other kind, whatever its name says, and no pipe."""
    with open(file, "rb", opener=regular) as stream, Image.open(stream, formats=FORMATS) as image:
        yield image


def squares(files: Sequence[Path], side: int) -> Images:
    """Decode PNG or JPEG files to uint8 [N, side, side, 3], resized bilinearly if needed."""
    images = np.empty((len(files), side, side, 3), dtype=np.uint8)
    for position, file in enumerate(files):
        with opened(file) as image:
            images[position] = _square(image, side)
    return images


def _square(image: Image.Image, side: int) -> Images:
    return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
