"""A user's own images: arrays in one .npz file, or one folder per class."""

import hashlib
import os
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.common.errors import DataError
from datamodules.common.memory import available_bytes
from datamodules.io import sources
from datamodules.io.npz import read_npz
from datamodules.io.sources import FIELDS, Arrays, ArraysError
from datamodules.partition.sites import HIDDEN
from datamodules.views.checks import check_memory

DECODING = 2  # version of what stands in a cache
UNLABELLED = ("unlabelled_images", "unlabeled_images")
"""Arrays of a file whose images have no label."""

SUFFIXES = (".png", ".jpg", ".jpeg")

_PART = re.compile(r"(?:seg[_-])?(train|test)(?:ing)?(?:[_-]?(?:set|data|images))?|unlabell?ed", re.IGNORECASE)
"""Names of the folders that a folder is split into."""
_SPLIT = re.compile(
    r"val|valid|validation|dev|eval|holdout|(?:fold|split|part)[_-]?\d+|(?:val|dev|eval)[_-]?set", re.IGNORECASE
)
"""Other names of parts, of which nobody can say what they are for."""
_MASKS = re.compile(r"images?|imgs?|masks?|labels?|annotations?|segmentations?|ground[_-]?truth", re.IGNORECASE)


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


def npz(file: Path, test_fraction: float, clients_in: str | None = None) -> Arrays:
    """Read a .npz file with ``train_images``, ``train_labels`` and optionally ``test_images``, ``test_labels``.

    Images are uint8 [N, H, W] or [N, H, W, 1 or 3], labels integers [N] or [N, 1], -1 for a training image without one.
    ``unlabelled_images`` are such images, too. ``class_names`` (str [C]) names the classes; the default is their
    numbers. ``client_ids`` [N] names the client of each training image, perhaps of each unlabelled one behind them.

    Args:
        file: the file.
        test_fraction: share of each class that becomes the test set if the file has none.
        clients_in: ``client_ids``: clients are those.

    Raises:
        ConfigError: the arrays do not fit into memory.
        DataError: the file is damaged, an array is missing or has the wrong type, a class has no training image, or a
            label is outside 0..C-1.
    """
    digests = npz_digest(file)
    found = read_npz(file, {*FIELDS, *UNLABELLED, "client_ids"})
    parts = ("train", "test") if {"test_images", "test_labels"} & set(found) else ("train",)
    needed = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    if missing := [name for name in needed if name not in found]:
        raise DataError(f"{file} has no {missing[0]}; it needs {', '.join(needed)}")
    images = [_with_channels(found[f"{part}_images"]) for part in parts]
    labels = [found[f"{part}_labels"] for part in parts]
    labels = [array[:, 0] if array.shape[1:] == (1,) else array for array in labels]  # [N, 1] in MedMNIST's files
    names = _names(file, found.get("class_names"), labels[0])
    clients = found.get("client_ids")
    notes: tuple[str, ...] = ()
    if clients_in and clients is None:
        raise DataError(
            f"{file} has no client_ids; add the client of every training image, or leave data.clients_in out"
        )
    if clients is not None and not clients_in:
        clients, notes = None, (f"{file}: not read: client_ids; to use them, give --data.clients_in client_ids",)
    for extra in (_with_channels(found[name]) for name in UNLABELLED if name in found):
        if (extra.dtype, extra.shape[1:]) != (images[0].dtype, images[0].shape[1:]):
            raise DataError(
                f"{file}: images without a label are {extra.dtype} {list(extra.shape)}, the others "
                f"{images[0].dtype} {list(images[0].shape)}; give them one form"
            )
        if clients is not None and len(clients) == len(labels[0]):
            nobody = np.full(len(extra), "" if clients.dtype.kind == "U" else -1, clients.dtype)
            clients = np.concatenate([clients, nobody])
        images[0] = np.concatenate([images[0], extra])
        labels[0] = np.concatenate([labels[0], np.full(len(extra), HIDDEN)])
    more = {"sha256": digests, "train_clients": clients, "notes": notes}
    try:
        return _arrays(file, images, labels, names, test_fraction, **more)
    except ArraysError as error:
        raise DataError(f"{file}: {error}") from error


def npz_digest(file: Path) -> dict[str, str]:
    """SHA-256 of a file, by its name.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return {file.name: sources.sha256_of(file)}
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def folder_digest(root: Path, clients_in: str | None = None) -> dict[str, str]:
    """SHA-256 of the paths and bytes of all images of a folder, by its name.

    Raises:
        DataError: as ``folder``, or an image cannot be read.
    """
    return {root.resolve().name: _digest(root, listing(root, clients_in))}


def _with_channels(images: NDArray[Any]) -> NDArray[Any]:
    return images[..., None] if images.ndim == 3 and images.dtype == np.uint8 else images


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


def _arrays(
    where: Path,
    images: list[NDArray[Any]],
    labels: list[NDArray[Any]],
    names: tuple[str, ...],
    test_fraction: float,
    **more: Any,
) -> Arrays:
    """A data set of training and test images or, without these, with the same share of every class held out.

    Raises:
        DataError: there is one class, or a class has no training image; or one has a single image, and no test image.
    """
    split = len(images) == 2
    test = (images[1], labels[1]) if split else (images[0][:1], labels[0][:1].clip(0))  # to be replaced
    arrays = Arrays(images[0], labels[0], *test, names, **more)
    members = [np.flatnonzero(arrays.train_labels == label) for label in range(len(names))]
    counts = list(map(len, members))
    if len(names) < 2 or not all(counts):
        fault = "there is one class only" if all(counts) else f"class {counts.index(0)} has no training image"
        raise DataError(f"{where}: {fault}; number the classes 0..C-1 without a gap, two at least")
    if split:
        return arrays
    if 1 in counts:
        name = names[counts.index(1)]
        raise DataError(f"{where}: class {name!r} has one image, not one to train and one to test; add images")
    draw, held = np.random.RandomState(0), np.zeros(len(arrays.train_labels), dtype=bool)
    for own in members:
        count = min(max(1, round(test_fraction * len(own))), len(own) - 1)
        held[draw.permutation(own)[:count]] = True
    return arrays.dealt(arrays.train_images, arrays.train_labels, ~held, held)


def folder(
    root: Path, data_dir: sources.Folder, side: int | None, test_fraction: float, clients_in: str | None = None
) -> Arrays:
    """Read PNG and JPEG files in ``root/train/<class>`` and ``root/test/<class>``, or in ``root/<class>``.

    Classes are numbered in the order of their names; images are in the order of their paths, with those in folders
    inside a class's, also behind links. Hidden files and folders (``.name``) are left out. Images of ``unlabeled`` or
    ``unlabelled`` have no label and come last. Names of the parts may be written otherwise (``Training``, ``seg_test``,
    see ``_PART``).

    Images are decoded once and cached as ``<data_dir>/folder-<digest>.npz``, with the digest of all files' paths and
    bytes, ``side`` and ``test_fraction``. ``sha256`` holds the files' digest under the name of ``root``.

    Args:
        root: the folder.
        data_dir: where decoded images are cached.
        side: side of the squares that images become (Pillow, bilinear); None: all must have the same size.
        test_fraction: share of each class that becomes the test set if there is no ``test``.
        clients_in: ``folders``: there is a folder for each client, ``<client>/<class>``, and ``<client>/unlabeled``.

    Raises:
        DataError: a class is empty or in only one part, folders are no classes, an image cannot be read, or sizes
            differ.
        ConfigError: the images do not fit into memory.
    """
    found = listing(root, clients_in)
    content = _digest(root, found)
    text = f"{DECODING} {content} {side} {None if found.test else test_fraction}"
    text += " clients" if clients_in else ""
    text += " unlabelled" if found.train[-1].label is None else ""
    name = f"folder-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    arrays = sources.cached(name, data_dir, partial(_decoded, root, found, side, test_fraction))
    return replace(arrays, sha256={root.resolve().name: content}, notes=found.notes)


class Picture(NamedTuple):
    """An image file, its class (``None``: nobody knows it), and its client (empty: no client's)."""

    file: Path
    label: str | None
    client: str = ""


class Listing(NamedTuple):
    """The images of a folder: for training, for testing (none if the folder is not split), and what was not read."""

    train: list[Picture]
    test: list[Picture]
    notes: tuple[str, ...]


def listing(root: Path, clients_in: str | None) -> Listing:
    """List a folder's images.

    Raises:
        DataError: see ``folder``.
    """
    if not root.is_dir():
        raise DataError(
            f"data.root={root} is not a folder; give one with train/<class>/ and test/<class>/, or <class>/"
        )
    parts, skipped = _parts(root)
    others: Counter[str] = Counter()
    train = _pictures(parts.get("train", root), clients_in, others)
    test = _pictures(parts["test"], clients_in, others) if "test" in parts else []
    if clients_in and not any(picture.client for picture in train):
        raise DataError(f"{parts.get('train', root)} has no folders of clients: give <client>/<class>/")
    if "unlabelled" in parts:
        clients = {picture.client for picture in train}
        for file in _images(parts["unlabelled"], others):
            first = file.relative_to(parts["unlabelled"]).parts[0]
            train.append(Picture(file, None, first if first in clients else ""))
    train.sort(key=lambda picture: picture.label is None)
    test = [picture for picture in test if picture.label is not None]
    if test and (apart := sorted(set(_classes(train)) ^ set(_classes(test)))):
        raise DataError(f"{root}: train and test need the same classes; only one has {', '.join(map(repr, apart))}")
    notes = [f"{root}: not read: the folders {', '.join(skipped)}"] if skipped else []
    if others:
        kinds = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in others.most_common())
        notes.append(f"{root}: not read: {kinds}; images are {', '.join(SUFFIXES)}")
    return Listing(train, test, tuple(notes))


def _classes(pictures: list[Picture]) -> tuple[str, ...]:
    """The classes, in the order of their numbers."""
    return tuple(sorted({picture.label for picture in pictures if picture.label is not None}))


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _part(path: Path) -> str | None:
    """``train``, ``test`` or ``unlabelled``, if the folder is called so in a way that leaves no doubt."""
    match = _PART.fullmatch(path.name)
    return None if match is None else (match[1] or "unlabelled").lower()


def _parts(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The folders of the parts that ``root`` is split into, and the names of those that are not read.

    Raises:
        DataError: it is not clear which folder is to be trained or tested on.
    """
    parts: dict[str, Path] = {}
    for path in _folders(root):
        if (part := _part(path)) is None:
            continue
        if part in parts:
            raise DataError(f"{root} has two folders for one part, {parts[part].name} and {path.name}; keep one")
        while [_part(inner) for inner in _folders(path)] == [part]:  # seg_train/seg_train/<class>
            path = _folders(path)[0]
        parts[part] = path
    if "test" in parts and "train" not in parts:
        raise DataError(f"{root} has test but no train; add train/<class>/, or give <class>/ only")
    beside = [path.name for path in _folders(root) if _part(path) is None] if "train" in parts else []
    splits = [name for name in beside if _SPLIT.fullmatch(name)]
    if splits and "test" not in parts:
        raise DataError(
            f"{root} is split into {parts['train'].name} and {', '.join(splits)}; call the one to test on 'test', or "
            "move it away to test on a share of the training images"
        )
    return parts, beside


def _pictures(place: Path, clients_in: str | None, others: Counter[str]) -> list[Picture]:
    """The images of a part by client, class and path; those without a label have the class ``None``."""
    above = [path for path in _folders(place) if _part(path) != "unlabelled"]
    if not clients_in or not any(map(_folders, above)):
        _check_classes(place, above)
        return [Picture(file, path.name) for path in above for file in _images(path, others)]
    found: list[Picture] = []
    for client in above:
        for path in _folders(client):
            label = None if _part(path) == "unlabelled" else path.name
            found += [Picture(file, label, client.name) for file in _images(path, others, least=0)]
    return found


def _check_classes(place: Path, classes: list[Path]) -> None:
    """Refuse folders that are no classes.

    Raises:
        DataError: there are fewer than two, or they are splits, images with their masks, or sites above classes.
    """
    names = ", ".join(path.name for path in classes[:4])
    if len(classes) < 2:
        raise DataError(f"{place} has {len(classes)} class folders; give at least two, one per class")
    if all(_SPLIT.fullmatch(path.name) or _MASKS.fullmatch(path.name) or _part(path) for path in classes):
        raise DataError(
            f"{place}: the folders {names} look like splits, or images and their masks, not classes; call splits train "
            "and test, and give <class>/"
        )
    shared = sorted(set.intersection(*({path.name for path in _folders(one)} for one in classes)))
    if len(shared) > 1:
        raise DataError(
            f"{place}: the folders {names} all have folders {', '.join(shared[:4])}. If those above are clients, and "
            "these are classes, give --data.clients_in folders; otherwise put the images of a class into its folder, "
            "and masks elsewhere"
        )


def _images(place: Path, others: Counter[str], least: int = 1) -> list[Path]:
    """The images below a folder; files of other kinds are counted by their suffix.

    Raises:
        DataError: there are fewer than ``least``.
    """
    files = sources.files_below(place)
    found = [file for file in files if file.suffix.lower() in SUFFIXES]
    counts = Counter(file.suffix.lower() for file in files if file.suffix.lower() not in SUFFIXES)
    if len(found) < least:
        but = f" but {', '.join(f'{count} {suffix}' for suffix, count in counts.items())}" if counts else ""
        raise DataError(f"{place} has no images ({', '.join(SUFFIXES)}){but}; add some, or remove the folder")
    others.update(counts)
    return found


def _digest(root: Path, found: Listing) -> str:
    """SHA-256 of the paths and bytes of all images."""
    digest = hashlib.sha256()
    for file in (picture.file for picture in (*found.train, *found.test)):
        try:
            content = sources.sha256_of(file)
        except OSError as error:
            raise DataError(f"{file} cannot be read as an image: {error}. Replace or remove it") from error
        digest.update(os.fsencode(file.relative_to(root)) + f"\0{content}\n".encode())
    return digest.hexdigest()


def _decoded(root: Path, found: Listing, side: int | None, test_fraction: float) -> Arrays:
    parts = [found.train, found.test] if found.test else [found.train]
    grey, size = True, (side, side) if side else None
    for picture in (picture for some in parts for picture in some):
        is_grey, own = _looked_at(picture.file)
        grey, size = grey and is_grey, size or own
        if not side and own != size:
            raise DataError(
                f"{picture.file} has {own[0]} x {own[1]} pixels, the images before it {size[0]} x {size[1]}; give "
                "--data.side to resize all to the same size"
            )
    assert size is not None
    width, height, channels = *size, 1 if grey else 3
    needed = sum(map(len, parts)) * height * width * channels
    check_memory(str(root), {"side": side} if side else {}, needed, available_bytes(), processes=1)
    images = [sources.decoded([picture.file for picture in some], height, width, channels) for some in parts]
    names = _classes(found.train)
    number = {name: place for place, name in enumerate(names)} | {None: HIDDEN}
    labels = [np.array([number[picture.label] for picture in some]) for some in parts]
    clients = [picture.client for picture in found.train]
    named = np.array(clients) if any(clients) else None
    return _arrays(root, images, labels, names, test_fraction, sha256={}, train_clients=named)


def _looked_at(file: Path) -> tuple[bool, tuple[int, int]]:
    """Whether an image is grey according to its header, and its width and height.

    Raises:
        DataError: it is not a PNG or JPEG image, or has more than 8 bits per channel.
    """
    with sources.opened(file) as image:
        mode, size, stored = image.mode, image.size, str(image.tile)
    if ";16" in stored:  # Pillow reads 16-bit colours as 8-bit ones
        raise DataError(f"{file} has more than 8 bits per channel; convert it to 8 bits")
    return mode in ("1", "L", "LA"), size
