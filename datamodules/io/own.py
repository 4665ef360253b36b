"""A user's own images: arrays in one .npz file, or one folder per class."""

import hashlib
import zipfile
from collections import Counter
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
from datamodules.io.sources import Arrays, Images
from datamodules.views.checks import check_memory

DECODING = 2  # version of what stands in a cache
PARTS = ("train", "test")
"""Folders of a folder that is split."""

SUFFIXES = (".png", ".jpg", ".jpeg")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes with at most 8 bits per channel."""

SINGLE = b"\x93NUMPY"
"""How a .npy file begins."""

Labels = NDArray[np.int64]


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
    places = list(dict.fromkeys([Path(data_dir) / path, path]))
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
        DataError: the file is damaged, an array is missing or has the wrong type, a class has no training image, a
            label is outside 0..C-1, or training and test images differ in size.
    """
    found = _arrays_of(file)
    parts = ["train", "test"] if {"test_images", "test_labels"} & set(found) else ["train"]
    needed = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    if missing := [name for name in needed if name not in found]:
        raise DataError(
            f"{file} has no {missing[0]}, only {', '.join(found) or 'nothing'}; it needs {', '.join(needed)}"
        )
    images = [_pictures(file, f"{part}_images", found[f"{part}_images"]) for part in parts]
    labels = [_labels(file, f"{part}_labels", found[f"{part}_labels"]) for part in parts]
    for part, some, own in zip(parts, images, labels, strict=True):
        if len(some) != len(own):
            raise DataError(f"{file} has {len(some)} {part}_images and {len(own)} {part}_labels; give one label each")
    _check_different(file, images[0])
    if images[0].shape[1:] != images[-1].shape[1:]:
        raise DataError(
            f"{file}: train_images are {_size(images[0])} and test_images {_size(images[-1])}; give them one size"
        )
    names = _names(file, found.get("class_names"), labels[0])
    _check_classes(file, labels, names)
    digests = npz_digest(file)
    if len(parts) == 2:
        return Arrays(images[0], labels[0], images[1], labels[1], names, digests)
    test = held_out(labels[0], names, test_fraction, file)
    return Arrays(images[0][~test], labels[0][~test], images[0][test], labels[0][test], names, digests)


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


def held_out(labels: Labels, names: tuple[str, ...], fraction: float, where: Path) -> NDArray[np.bool_]:
    """Choose the test images: the same share of every class, at least one, the same in every run.

    Raises:
        DataError: a class has only one image.
    """
    draw, test = np.random.RandomState(0), np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(names):
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            raise DataError(
                f"{where}: class {name!r} has one image, which cannot be in both the training and the test set; "
                "add images, or a test part"
            )
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        test[draw.permutation(members)[:count]] = True
    return test


def _check_different(where: Path, images: Images) -> None:
    """Refuse training images that are all the same; stops at the first that differs."""
    if len(images) > 1 and all(np.array_equal(images[0], image) for image in images[1:]):
        raise DataError(
            f"{where}: all {len(images):,} training images are the same, so nothing can be learnt from them; look at "
            "how they were saved"
        )


def _arrays_of(file: Path) -> dict[str, NDArray[Any]]:
    if file.is_dir():
        raise DataError(f"{file} is a folder, and --data npz reads one file; --data folder --data.root {file} reads it")
    try:
        with file.open("rb") as opened:
            head = opened.read(len(SINGLE))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error
    how = "numpy.savez('images.npz', train_images=..., train_labels=...) saves images and labels in one file"
    if head == SINGLE:
        raise DataError(f"{file} holds one array, as .npy files do; {how}")
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is no .npz file, or is cut short; {how}")
    try:
        with np.load(file, allow_pickle=False) as data:
            known = {f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")} | {"class_names"}
            return {name: _array(file, name, data) if name in known else np.empty(0) for name in data.files}
    except DataError:
        raise
    except Exception as error:  # NumPy, zipfile and zlib have their own exceptions
        raise DataError(
            f"{file} cannot be read as .npz: {message_of(error)}. Write it anew with numpy.savez"
        ) from error


def _array(file: Path, name: str, data: Any) -> NDArray[Any]:
    try:
        found: NDArray[Any] = data[name]
    except ValueError as error:
        raise DataError(
            f"{file}: {name} cannot be read: {message_of(error)}. Write the file anew with numpy.savez, and without "
            "arrays of Python objects: images of one size, class names as texts"
        ) from error
    return found


def _pictures(file: Path, name: str, images: NDArray[Any]) -> Images:
    """Return images with a channel axis."""
    if images.ndim and not len(images):
        raise DataError(f"{file}: {name} has no images; is the right array saved under this name?")
    whole = images[..., None] if images.ndim == 3 else images
    if images.dtype != np.uint8 or whole.ndim != 4 or whole.shape[3] not in (1, 3) or not whole.size:
        raise DataError(
            f"{file}: {name} are {images.dtype} {list(images.shape)}; give uint8 [N, H, W] or [N, H, W, 1 or 3] with "
            "values 0 to 255"
        )
    return whole


def _labels(file: Path, name: str, labels: NDArray[Any]) -> Labels:
    """Return labels without the second axis of length 1 of MedMNIST's files."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise DataError(f"{file}: {name} are {labels.dtype} {list(labels.shape)}; give one integer per image, [N]")
    if flat.size and flat.min() < 0:
        raise DataError(f"{file}: {name} lie in {flat.min()}..{flat.max()}; number the classes 0..C-1 without a gap")
    return flat.astype(np.int64)


def _names(file: Path, given: NDArray[Any] | None, labels: Labels) -> tuple[str, ...]:
    if given is None:
        if labels.max() >= len(labels):  # a name for each number up to an id could fill the memory
            raise DataError(
                f"{file}: train_labels go up to {labels.max()}, and there are {len(labels)} training images; number "
                "the classes 0..C-1 without a gap"
            )
        return tuple(map(str, range(labels.max() + 1)))
    if given.ndim != 1 or given.dtype.kind not in "US":
        raise DataError(f"{file}: class_names are {given.dtype} {list(given.shape)}; give texts, [C]")
    try:
        texts = np.char.decode(given, "utf-8") if given.dtype.kind == "S" else given
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: class_names are bytes, and not UTF-8; save them as texts") from error
    names = tuple(texts.tolist())
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{file}: class_names have {twice[0]!r} twice; give every class a name of its own")
    return names


def _check_classes(file: Path, labels: list[Labels], names: tuple[str, ...]) -> None:
    for part, own in zip(("train", "test"), labels, strict=False):
        if own.max() >= len(names):
            raise DataError(
                f"{file}: {part}_labels lie in {own.min()}..{own.max()}, but there are {len(names)} classes; labels "
                f"must lie in 0..{len(names) - 1}"
            )
    counts = np.bincount(labels[0], minlength=len(names))
    if len(counts) < 2 or not counts.all():
        empty = np.flatnonzero(counts == 0)
        fault = f"class {empty[0]} has no training image" if len(empty) else "there is one class only"
        raise DataError(f"{file}: {fault}; number the classes 0..C-1 without a gap, two at least")


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


def _parts(root: Path) -> dict[str, dict[str, list[Path]]]:
    """List the images of each class for ``train`` and ``test``, or for ``""`` if the folder is not split.

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
    classes = {name: _classes(root / name) for name in names or [""]}
    if len(names) == 2 and classes["train"] != classes["test"]:
        train, test = (set(classes[part]) for part in ("train", "test"))
        alone = {"train": sorted(train - test), "test": sorted(test - train)}
        apart = [f"{', '.join(map(repr, some))} only in {part}" for part, some in alone.items() if some]
        raise DataError(f"{root}: classes differ: {', '.join(apart)}; train and test need the same classes")
    return {name: _images(root / name, own) for name, own in classes.items()}


def _classes(place: Path) -> list[str]:
    """The names of the folders in a folder, sorted."""
    return sorted(path.name for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(place: Path, names: list[str]) -> dict[str, list[Path]]:
    """The images of each class."""
    if len(names) < 2:
        count = "one class folder" if names else "no class folder"
        hint = f". If {place.name} is a class itself, rename it" if place.name in PARTS and not names else ""
        raise DataError(f"{place} has {count}; give at least two, one per class{hint}")
    found = {}
    for name in names:
        files = (file for file in (place / name).rglob("*") if file.suffix.lower() in SUFFIXES)
        found[name] = sorted(file for file in files if not _hidden(file.relative_to(place)))
        if not found[name]:
            raise DataError(f"{place / name} has no images ({', '.join(SUFFIXES)}); add some, or remove the folder")
    return found


def _hidden(path: Path) -> bool:
    """Whether the file or one of the folders of a relative path is hidden."""
    return any(part.startswith(".") for part in path.parts)


def _digest(root: Path, parts: dict[str, dict[str, list[Path]]]) -> str:
    """SHA-256 of the paths and bytes of all images."""
    digest = hashlib.sha256()
    for classes in parts.values():
        for files in classes.values():
            for file in files:
                try:
                    line = f"{file.relative_to(root).as_posix()}\0{sources.sha256_of(file)}\n".encode()
                except UnicodeEncodeError as error:
                    raise DataError(f"{str(file)!a}: this name is not UTF-8; rename it") from error
                except OSError as error:
                    raise _unreadable(file, error) from error
                digest.update(line)
    return digest.hexdigest()


def _decoded(root: Path, parts: dict[str, dict[str, list[Path]]], side: int | None, test_fraction: float) -> Arrays:
    names = tuple(next(iter(parts.values())))
    files = [[file for some in classes.values() for file in some] for classes in parts.values()]
    looks = {file: _looked_at(file) for some in files for file in some}
    channels = 1 if all(grey for grey, _ in looks.values()) else 3
    width, height = (side, side) if side else _one_size(looks)
    needed = len(looks) * height * width * channels
    check_memory(str(root), {"side": side} if side else {}, needed, available_bytes(), processes=1)
    images = [np.empty((len(some), height, width, channels), dtype=np.uint8) for some in files]
    for stored, some in zip(images, files, strict=True):
        for place, file in enumerate(some):
            stored[place] = _image(file, side, channels)
    labels = [np.repeat(np.arange(len(names)), [len(own) for own in classes.values()]) for classes in parts.values()]
    _check_different(root, images[0])
    if len(images) == 2:
        return Arrays(images[0], labels[0], images[1], labels[1], names, {})
    test = held_out(labels[0], names, test_fraction, root)
    return Arrays(images[0][~test], labels[0][~test], images[0][test], labels[0][test], names, {})


def _looked_at(file: Path) -> tuple[bool, tuple[int, int]]:
    """Whether an image is grey according to its header, and its width and height.

    Raises:
        DataError: it is not an image, or has more than 8 bits per channel.
    """
    try:
        with Image.open(file) as image:
            mode, size, stored = image.mode, image.size, str(image.tile[0][3]) if image.tile else ""
    except Exception as error:
        raise _unreadable(file, error) from error
    if mode not in MODES or ";16" in stored:  # Pillow reads 16-bit colours as 8-bit ones
        raise DataError(f"{file} has more than 8 bits per channel (Pillow reads it as {mode}); convert it to 8 bits")
    return mode in ("1", "L", "LA"), size


def _one_size(looks: dict[Path, tuple[bool, tuple[int, int]]]) -> tuple[int, int]:
    """Width and height of all images.

    Raises:
        DataError: sizes differ.
    """
    _, first = next(iter(looks.values()))
    for file, (_, size) in looks.items():
        if size != first:
            raise DataError(
                f"{file} has {size[0]} x {size[1]} pixels, the images before it {first[0]} x {first[1]}; give "
                "--data.side to resize all to the same size"
            )
    return first


def _image(file: Path, side: int | None, channels: int) -> Images:
    """Decode one image, uint8 [H, W, 1 or 3]."""
    try:
        with Image.open(file) as image:
            plain = image.convert("L" if channels == 1 else "RGB")
    except Exception as error:
        raise _unreadable(file, error) from error
    if side is not None:
        plain = plain.resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels[..., None] if channels == 1 else pixels


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} cannot be read as an image: {message_of(error)}. Replace or remove it")


def _size(images: Images) -> str:
    height, width, channels = images.shape[1:]
    return f"{width} x {height} x {channels}"
