"""Data sets as uint8 arrays: read from a cache, the data set's usual files or a download."""

import hashlib
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from datamodules.common.errors import ConfigError, DataError, message_of
from datamodules.common.files import made_once
from datamodules.io.npz import read_npz, write_npz
from datamodules.partition.sites import HIDDEN

Folder = str | os.PathLike[str]
Images = NDArray[np.uint8]
Vectors = NDArray[np.float32]
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
STORED = ("train_images", "train_labels", "test_images", "test_labels")
FIELDS = (*STORED, "class_names")
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
                found = f"they lie in {labels.min()}..{labels.max()}"
                raise ArraysError(f"{part} labels must lie in 0..{len(self.class_names) - 1}, the class names; {found}")
            if vectors and not np.isfinite(images).all():
                raise ArraysError(f"{part} features must be finite")
            object.__setattr__(self, f"{part}_images", np.ascontiguousarray(images))
            object.__setattr__(self, f"{part}_labels", labels.astype(np.int64, copy=False))
        train, test = self.train_images, self.test_images
        if train.ndim != test.ndim or (train.ndim == 3 and train.shape[2] != test.shape[2]):
            what = "both be images, or both feature vectors of one length"
            raise ArraysError(f"training and test samples must {what}; they are {_shape(train)} and {_shape(test)}")
        clients = self.train_clients
        if clients is not None and (clients.dtype.kind not in "iuU" or clients.shape != self.train_labels.shape):
            raise ArraysError(f"clients must be one number or text per training image; they are {_shape(clients)}")

    def dealt(self, images: Images | Vectors, labels: NDArray[np.int64], train: Any, test: Any) -> "Arrays":
        """Other arrays instead: ``images`` and ``labels`` at the positions (or in the masks) ``train`` and ``test``."""
        clients = None if self.train_clients is None else self.train_clients[train]
        parts = (images[train], labels[train], images[test], labels[test])
        return replace(self, **dict(zip(STORED, parts, strict=True)), train_clients=clients)


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


Reader = Callable[[Path, list[Path]], Arrays]
"""Decodes files, given the data directory, or the folder of a download, and their paths; digests are added later."""


def load(
    name: str,
    data_dir: Folder,
    places: Sequence[Sequence[str]],
    read: Reader,
    remedy: str,
    fetch: Callable[[Path], object] | None = None,
) -> Arrays:
    """Read ``<data_dir>/<name>.npz``, else the data set's files where they are all there, else download.

    The cache has the arrays ``FIELDS``. A download is only kept decoded, as this cache, and read back from it, so that
    all runs report the same digest. One process creates the cache while others wait.

    Args:
        name: name of the cache; the part before a ``-`` is the key in ``CLASS_COUNTS``. A data set without a key may
            have any number of images.
        data_dir: where to look and where to write the cache.
        places: where its files may lie, absolute or relative to the data directory; a download gives the first.
        read: decodes them.
        remedy: how a user can provide the files.
        fetch: downloads into the given directory; ``None`` if there is no download, as for data sets of single images,
            whose decoding takes minutes: it is cached.

    Raises:
        ConfigError: the cache does not fit into memory.
        DataError: no files are found, or they are damaged or a different data set.
    """
    root = Path(data_dir)
    cache = root / f"{name}.npz"
    if cache.exists():
        return _verified(name, _read_cache, root, [cache])
    absent = [str(cache)]
    for place in places:
        files = [root / file for file in place]
        missing = [file for file in files if not file.exists()]
        if not missing:
            decode = partial(_verified, name, read, root, files)
            return cached(name, data_dir, decode) if fetch is None else decode()
        absent.append(str(missing[0]))
    failure = "there is no download"
    if fetch is not None:
        try:
            return cached(name, data_dir, partial(_downloaded, name, places[0], read, fetch, root))
        except Exception as error:  # any error of network or disk is reported below
            failure = f"the download failed: {message_of(error)}"
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
        fields = FIELDS if arrays.train_clients is None else (*FIELDS, "train_clients")
        write_npz(cache, {field: getattr(arrays, field) for field in fields})
        _log.info("wrote %s", cache)

    made_once(cache, write)
    return _verified(name, _read_cache, cache.parent, [cache])


def _downloaded(name: str, place: Sequence[str], read: Reader, fetch: Callable[[Path], object], root: Path) -> Arrays:
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)  # otherwise a firewall that drops packets blocks forever
    try:
        _log.info("downloading %s", name)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as folder:
            fetch(Path(folder))
            return _verified(name, read, Path(folder), [Path(folder, file) for file in place])
    finally:
        socket.setdefaulttimeout(timeout)


def _verified(name: str, read: Reader, root: Path, files: list[Path]) -> Arrays:
    """What ``read`` makes of the files, with their digests; refuses other counts than the published ones."""
    try:
        digests = {file.name: sha256_of(file) for file in files if not file.is_dir()}
        arrays = replace(read(root, files), sha256=digests)
        known = arrays.train_labels[arrays.train_labels != HIDDEN]
        counts = tuple(tuple(np.bincount(labels).tolist()) for labels in (known, arrays.test_labels))
        published = CLASS_COUNTS.get(name.split("-")[0], counts)
        if counts != published:
            raise DataError(f"the training and test images per class are {counts} instead of {published}")
    except ConfigError:
        raise
    except Exception as error:  # each format's library has its own exceptions
        where = files[0] if read is _read_cache else f"a file in {files[0].parent}"
        raise DataError(
            f"{name}: {where} is damaged or not the published data set: {message_of(error)}. Provide an intact copy, "
            "or delete it to try the other sources"
        ) from error
    return arrays


def _read_cache(root: Path, files: list[Path]) -> Arrays:
    data = read_npz(files[0], {*FIELDS, "train_clients"})
    parts: dict[str, Any] = {field: data[field] for field in STORED}
    return Arrays(**parts, class_names=data["class_names"].tolist(), sha256={}, train_clients=data.get("train_clients"))


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


def random_split(arrays: Arrays, seed: int) -> Arrays:
    """Merge training and test images and split them 80/20 by image, at random (RSCFed's text).

    Args:
        arrays: the published split.
        seed: seed of NumPy's legacy generator, called for one permutation.

    Images without a label stay training images, behind the others.

    Raises:
        DataError: training and test images differ in size, or training images have clients and test images none.
    """
    sizes = arrays.train_images.shape[1:], arrays.test_images.shape[1:]
    if arrays.train_clients is not None or sizes[0] != sizes[1]:
        what = f"images of one size ({sizes[0]} for training, {sizes[1]} for tests) and no clients in the data"
        raise DataError(f"a random split needs {what}; keep data.split=official")
    images = np.concatenate([arrays.train_images, arrays.test_images])
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    known = np.flatnonzero(labels != HIDDEN)
    order = known[np.random.RandomState(seed).permutation(len(known))]
    train, test = np.split(order, [int(0.8 * len(known))])
    return arrays.dealt(images, labels, np.append(train, np.flatnonzero(labels == HIDDEN)), test)


def files_below(place: Path) -> list[Path]:
    """All files below a folder, in the order of their paths, without hidden ones (``.name``).

    Links to folders are followed; a folder that is reached twice is entered once.
    """
    found: list[Path] = []
    entered: set[str] = set()
    for folder, inside, names in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            inside.clear()
            continue
        entered.add(real)
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(found)


def sha256_of(file: Path) -> str:
    """SHA-256 in hex of a file's bytes."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def opened(file: Path) -> Iterator[ImageFile.ImageFile]:
    """Open a PNG or JPEG file; no other kind, whatever its name says.

    Raises:
        DataError: it cannot be read, there or in what is done with it.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # Pillow raises any
        raise DataError(f"{file} cannot be read as an image: {message_of(error)}. Replace or remove it") from error


def decoded(files: Sequence[Path], height: int, width: int, channels: int = 3) -> Images:
    """Decode PNG or JPEG files to uint8 [N, height, width, channels], resized bilinearly if needed."""
    images = np.empty((len(files), height, width, channels), dtype=np.uint8)
    for stored, file in zip(images, files, strict=True):
        with opened(file) as image:
            plain = image.convert("L" if channels == 1 else "RGB")
            resized = plain.resize((width, height), Image.Resampling.BILINEAR)
            stored[...] = np.asarray(resized).reshape(stored.shape)
    return images
