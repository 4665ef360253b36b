"""A user's own images: arrays in one .npz file, or one folder per class."""

import hashlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datamodules.common.errors import ConfigError, DataError, message_of
from datamodules.common.memory import available_bytes
from datamodules.io import sources
from datamodules.io.npz import read_npz
from datamodules.io.sources import FIELDS, Arrays, ArraysError, Images
from datamodules.views.checks import check_memory

DECODING = 2  # version of what stands in a cache
PARTS = ("train", "test")
"""Folders of a folder that is split."""

SUFFIXES = (".png", ".jpg", ".jpeg")

Labels = NDArray[np.int64]
Files = dict[str, dict[str, list[Path]]]
"""The images of each class, by part: ``train`` and ``test``, or ``""`` if the folder is not split."""


def check_share(test_fraction: float) -> None:
    """Refuse a share of test images that leaves one side empty.

    Raises:
        ConfigError: it is not between 0 and 1.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(f"data.test_fraction is {test_fraction}; it is a share, above 0 and below 1")


def located(given: str, data_dir: sources.Folder, option: str) -> Path:
    """Find a user's file or folder in the data directory or, if it is not there, in the current folder.

    Raises:
        DataError: it is in neither; says where it was looked for.
    """
    path = Path(given).expanduser()
    places = [Path(data_dir) / path, path]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(place.absolute()) for place in places)
    raise DataError(f"data.{option}={given} does not exist: looked for {looked}; give an existing path")


def npz(file: Path, test_fraction: float) -> Arrays:
    """Read a .npz file with ``train_images``, ``train_labels`` and optionally ``test_images``, ``test_labels``.

    Images are uint8 [N, H, W] or [N, H, W, 1 or 3], labels integers [N] or [N, 1]. ``class_names`` (str [C]) names the
    classes; the default is their numbers.

    Args:
        file: the file.
        test_fraction: share of each class that becomes the test set if the file has none.

    Raises:
        ConfigError: the arrays do not fit into memory.
        DataError: the file is damaged, an array is missing or has the wrong type, a class has no training image, or a
            label is outside 0..C-1.
    """
    digests = npz_digest(file)
    found = read_npz(file, FIELDS)
    parts = PARTS if {"test_images", "test_labels"} & set(found) else ("train",)
    needed = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    if missing := [name for name in needed if name not in found]:
        raise DataError(f"{file} has no {missing[0]}; it needs {', '.join(needed)}")
    images, labels = ([found[f"{part}_{what}"] for part in parts] for what in ("images", "labels"))
    images = [array[..., None] if array.ndim == 3 and array.dtype == np.uint8 else array for array in images]
    labels = [array[:, 0] if array.shape[1:] == (1,) else array for array in labels]  # [N, 1] in MedMNIST's files
    names = _names(file, found.get("class_names"), labels[0])
    try:
        arrays = Arrays(images[0], labels[0], images[-1], labels[-1], names, digests)
    except ArraysError as error:
        raise DataError(f"{file}: {error}") from error
    counts = np.bincount(arrays.train_labels, minlength=len(names))
    if len(names) < 2 or not counts.all():
        fault = "there is one class only" if counts.all() else f"class {counts.argmin()} has no training image"
        raise DataError(f"{file}: {fault}; number the classes 0..C-1 without a gap, two at least")
    return _complete(arrays, len(parts) == 2, test_fraction, file)


def npz_digest(file: Path) -> dict[str, str]:
    """SHA-256 of a file, by its name.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return {file.name: sources.sha256_of(file)}
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def folder_digest(root: Path) -> dict[str, str]:
    """SHA-256 of the paths and bytes of all images of a folder, by its name.

    Raises:
        DataError: as ``folder``, or an image cannot be read.
    """
    return {root.resolve().name: _digest(root, _parts(root))}


def _complete(arrays: Arrays, split: bool, fraction: float, where: Path) -> Arrays:
    """Hold out test images of a data set that is not ``split``: the same share of every class, the same in every run.

    Raises:
        DataError: a class has only one image.
    """
    if split:
        return arrays
    labels = arrays.train_labels
    draw, test = np.random.RandomState(0), np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(arrays.class_names):
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            raise DataError(f"{where}: class {name!r} has one image, not one to train and one to test; add images")
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        test[draw.permutation(members)[:count]] = True
    return sources.dealt(arrays, arrays.train_images, labels, ~test, test)


def _names(file: Path, given: NDArray[Any] | None, labels: NDArray[Any]) -> tuple[str, ...]:
    if given is not None:
        return tuple(map(str, given.tolist()))
    if labels.dtype.kind not in "iu":
        raise DataError(f"{file}: train_labels are {labels.dtype}; give one integer per image, [N]")
    top = int(labels.max(initial=0))
    if top >= len(labels):  # a name for each number up to an id could fill the memory
        raise DataError(
            f"{file}: train_labels go up to {top}, and there are {len(labels)} training images; number the classes "
            "0..C-1 without a gap"
        )
    return tuple(map(str, range(top + 1)))


def folder(root: Path, data_dir: sources.Folder, side: int | None, test_fraction: float) -> Arrays:
    """Read PNG and JPEG files in ``root/train/<class>`` and ``root/test/<class>``, or in ``root/<class>``.

    Classes are numbered in the order of their names; images are in the order of their paths, with those in folders
    inside a class's. Hidden files and folders (``.name``) are left out. Images are decoded once and cached as
    ``<data_dir>/folder-<digest>.npz``, with the digest of all files' paths and bytes, ``side`` and ``test_fraction``.
    ``sha256`` holds the files' digest under the name of ``root``.

    Args:
        root: the folder.
        data_dir: where decoded images are cached.
        side: side of the squares that images become (Pillow, bilinear); None: all must have the same size.
        test_fraction: share of each class that becomes the test set if there is no ``test``.

    Raises:
        DataError: a class is empty or in only one part, an image cannot be read, or sizes differ.
        ConfigError: the images do not fit into memory.
    """
    parts = _parts(root)
    content = _digest(root, parts)
    text = f"{DECODING} {content} {side} {test_fraction if len(parts) == 1 else None}"
    name = f"folder-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    arrays = sources.cached(name, data_dir, partial(_decoded, root, parts, side, test_fraction))
    return replace(arrays, sha256={root.resolve().name: content})


def _parts(root: Path) -> Files:
    """List a folder's images.

    Raises:
        DataError: see ``folder``.
    """
    if not root.is_dir():
        raise DataError(
            f"data.root={root} is not a folder; give one with train/<class>/ and test/<class>/, or <class>/"
        )
    names = [name for name in PARTS if (root / name).is_dir()]
    if names == ["test"]:
        raise DataError(f"{root} has test but no train; add train/<class>/, or give <class>/ only")
    classes = {}
    for name in names or [""]:
        inside = (path.name for path in (root / name).iterdir() if path.is_dir())
        classes[name] = sorted(folder for folder in inside if not folder.startswith("."))
    if names and set(classes["train"]) != set(classes.get("test", classes["train"])):
        apart = sorted(set(classes["train"]) ^ set(classes["test"]))
        raise DataError(f"{root}: train and test need the same classes; only one has {', '.join(map(repr, apart))}")
    return {name: _images(root / name, own) for name, own in classes.items()}


def _images(place: Path, names: list[str]) -> dict[str, list[Path]]:
    """The images of each class."""
    if len(names) < 2:
        raise DataError(f"{place} has {len(names)} class folders; give at least two, one per class")
    found = {}
    for name in names:
        files = (file for file in (place / name).rglob("*") if file.suffix.lower() in SUFFIXES)
        found[name] = sorted(file for file in files if "/." not in f"/{file.relative_to(place)}")  # without hidden ones
        if not found[name]:
            raise DataError(f"{place / name} has no images ({', '.join(SUFFIXES)}); add some, or remove the folder")
    return found


def _digest(root: Path, parts: Files) -> str:
    """SHA-256 of the paths and bytes of all images."""
    digest = hashlib.sha256()
    for file in (file for classes in parts.values() for files in classes.values() for file in files):
        try:
            content = sources.sha256_of(file)
        except OSError as error:
            raise _unreadable(file, error) from error
        digest.update(os.fsencode(file.relative_to(root)) + f"\0{content}\n".encode())
    return digest.hexdigest()


def _decoded(root: Path, parts: Files, side: int | None, test_fraction: float) -> Arrays:
    names = tuple(next(iter(parts.values())))
    files = [[file for some in classes.values() for file in some] for classes in parts.values()]
    looks = {file: _looked_at(file) for some in files for file in some}
    channels = 1 if all(grey for grey, _ in looks.values()) else 3
    width, height = (side, side) if side else _one_size({file: size for file, (_, size) in looks.items()})
    needed = len(looks) * height * width * channels
    check_memory(str(root), {"side": side} if side else {}, needed, available_bytes(), processes=1)
    images = [np.empty((len(some), height, width, channels), dtype=np.uint8) for some in files]
    for stored, some in zip(images, files, strict=True):
        for place, file in enumerate(some):
            stored[place] = _image(file, side, channels)
    labels = [np.repeat(np.arange(len(names)), [len(own) for own in classes.values()]) for classes in parts.values()]
    arrays = Arrays(images[0], labels[0], images[-1], labels[-1], names, {})
    return _complete(arrays, len(images) == 2, test_fraction, root)


def _looked_at(file: Path) -> tuple[bool, tuple[int, int]]:
    """Whether an image is grey according to its header, and its width and height.

    Raises:
        DataError: it is not a PNG or JPEG image, or has more than 8 bits per channel.
    """
    try:
        with sources.opened(file) as image:
            mode, size, stored = image.mode, image.size, str(image.tile)
    except Exception as error:
        raise _unreadable(file, error) from error
    if ";16" in stored:  # Pillow reads 16-bit colours as 8-bit ones
        raise DataError(f"{file} has more than 8 bits per channel; convert it to 8 bits")
    return mode in ("1", "L", "LA"), size


def _one_size(sizes: dict[Path, tuple[int, int]]) -> tuple[int, int]:
    """Width and height of all images.

    Raises:
        DataError: sizes differ.
    """
    first = next(iter(sizes.values()))
    for file, size in sizes.items():
        if size != first:
            raise DataError(
                f"{file} has {size[0]} x {size[1]} pixels, the images before it {first[0]} x {first[1]}; give "
                "--data.side to resize all to the same size"
            )
    return first


def _image(file: Path, side: int | None, channels: int) -> Images:
    """Decode one image, uint8 [H, W, 1 or 3]."""
    try:
        with sources.opened(file) as image:
            plain = image.convert("L" if channels == 1 else "RGB")
    except Exception as error:
        raise _unreadable(file, error) from error
    if side is not None:
        plain = plain.resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels[..., None] if channels == 1 else pixels


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} cannot be read as an image: {message_of(error)}. Replace or remove it")
