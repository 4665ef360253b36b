"""Your own images: PNG or JPEG files in one folder per class; needs --data.root."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError
from datamodules.common.memory import available_bytes
from datamodules.common.options import Share
from datamodules.io import sources
from datamodules.io.own import arrays_of, located
from datamodules.io.sources import Arrays
from datamodules.partition.sites import HIDDEN
from datamodules.views.checks import check_memory

DECODING = 4  # version of what stands in a cache
SUFFIXES = (".png", ".jpg", ".jpeg")

_PART = re.compile(r"(?:seg[_-])?(train|test)(?:ing)?(?:[_-]?(?:set|data|images))?|unlabell?ed", re.IGNORECASE)
"""Names of the folders that a folder is split into."""
_SPLIT = re.compile(
    r"val|valid|validation|dev|eval|holdout|(?:fold|split|part)[_-]?\d+|(?:val|dev|eval)[_-]?set", re.IGNORECASE
)
"""Other names of parts, of which nobody can say what they are for."""
_MASKS = re.compile(r"images?|imgs?|masks?|labels?|annotations?|segmentations?|ground[_-]?truth", re.IGNORECASE)


class Folder(FSSLDataModule):
    """PNG or JPEG files; classes, side, mean and deviation come from the training images.

    Classes are numbered in the order of their names; images are in the order of their paths, with those in folders
    inside a class's, also behind links. Names of the parts may be written otherwise (``Training``, ``seg_test``, see
    ``_PART``). Hidden files and folders (``.name``) are left out, and transparency is dropped.

    Images must have the same size, unless ``side`` is given: then they become squares of this side, less the ``border``
    (Pillow, bilinear). They are decoded once and cached in the data directory as ``folder-<digest>.npz``, with the
    digest of all files' paths and bytes and of the options.

    Args:
        root: folder with ``train/<class>/`` and ``test/<class>/``, or with ``<class>/`` only, and perhaps with images
            in ``unlabeled/`` or ``train/unlabeled/``, whose class nobody knows and which come last; a relative path is
            looked up in the data directory, then in the current folder.
        test_fraction: share of each class's images that becomes the test set, the same in every run, if there is no
            folder ``test``.
        clients_in: ``folders``: training images are in ``<client>/<class>/``, and in ``<client>/unlabeled/`` or
            ``unlabeled/<client>/``.
        **base: see ``FSSLDataModule``.

    Raises:
        ConfigError: ``test_fraction`` is not a share, or the images do not fit into memory (in ``read`` and ``setup``).
        DataError: the folder is missing, a class is empty or in only one part, folders are no classes, or an image
            cannot be read or has a different size (in ``read`` and ``setup``).
    """

    measured = True

    def __init__(
        self, root: str, test_fraction: Share = 0.2, clients_in: Literal["folders"] | None = None, **base: Any
    ) -> None:
        super().__init__(**base)

    def digests(self) -> dict[str, str]:
        """That of the paths and bytes of all images, by the name of the folder."""
        root = located(self.hparams, "root")
        return _digests(root, listing(root, self.hparams.clients_in))

    def read(self) -> Arrays:
        """The images, from the cache if they have been decoded before."""
        h, root = self.hparams, located(self.hparams, "root")
        pictures = listing(root, h.clients_in)
        side = h.side - 2 * h.border if h.side else None
        digests = _digests(root, pictures)
        text = f"{DECODING} {digests} {side} {h.test_fraction} {h.clients_in}"
        name = f"folder-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        arrays = sources.cached(name, h.data_dir, partial(_decoded, root, pictures, side, h.test_fraction))
        return replace(arrays, sha256=digests, notes=pictures.notes)


class Picture(NamedTuple):
    """An image file, its class (``None``: nobody knows it), and its client (empty: no client's)."""

    file: Path
    label: str | None
    client: str = ""


class Listing(NamedTuple):
    """The images of a folder: for training, for testing (none without a folder ``test``), and what was not read."""

    train: list[Picture]
    test: list[Picture]
    notes: tuple[str, ...]


def listing(root: Path, clients_in: str | None) -> Listing:
    """List a folder's images.

    Raises:
        DataError: see ``Folder``.
    """
    if not root.is_dir():
        raise DataError(f"data.root={root} is no folder; give one with train/<class>/ and test/<class>/, or <class>/")
    parts = _parts(root)
    train = _pictures(parts.get("train", root), clients_in)
    test = _pictures(parts["test"], clients_in) if "test" in parts else []
    if clients_in and not any(picture.client for picture in train):
        raise DataError(f"{parts.get('train', root)} has no folders of clients: give <client>/<class>/")
    unlabelled = [parts["unlabelled"]] if "unlabelled" in parts else []
    if "train" in parts:
        unlabelled += [path for path in _folders(parts["train"]) if _part(path) == "unlabelled"]
    for place in unlabelled:
        for file in _images(place):
            above = file.relative_to(place).parts[:-1]
            train.append(Picture(file, None, above[0] if clients_in and above else ""))
    train.sort(key=lambda picture: picture.label is None)
    test = [picture for picture in test if picture.label is not None]
    if test and (apart := sorted(set(_classes(train)) ^ set(_classes(test)))):
        what = f"{root}: train and test need the same classes; only one has {', '.join(map(repr, apart))}"
        raise DataError(f"{what}. If these are clients above classes, give --data.clients_in folders")
    notes = _notes(root, [picture.file for picture in (*train, *test)])
    deeper = {_class_name(one.file.parent) for one in train if one.label not in (None, _class_name(one.file.parent))}
    if len(deeper) > 1 and not clients_in:
        belong = f"{root}: folders inside classes belong to them: {', '.join(sorted(deeper)[:6])}"
        notes += (f"{belong}; if these are classes, and those above are clients, give --data.clients_in folders",)
    return Listing(train, test, notes)


def _digests(root: Path, pictures: Listing) -> dict[str, str]:
    digest = hashlib.sha256()
    for picture in (*pictures.train, *pictures.test):
        content = sources.sha256_of(picture.file)
        digest.update(os.fsencode(picture.file.relative_to(root)) + f"\0{content}\n".encode())
    return {root.resolve().name: digest.hexdigest()}


def _notes(root: Path, read: list[Path]) -> tuple[str, ...]:
    """What was not read below ``root``: images by the highest folder that none was read from, other files by suffix."""
    paths = set(read)
    unread = [file for file in sources.files_below(root) if file not in paths]
    others = Counter(file.suffix.lower() for file in unread if file.suffix.lower() not in SUFFIXES)
    images: Counter[Path] = Counter()
    if len(unread) > others.total():  # links may lead to images that were read; they take long to follow
        real, entered = {file.resolve() for file in read}, {folder for file in read for folder in file.parents}
        for file in unread:
            if file.suffix.lower() in SUFFIXES and file.resolve() not in real:
                images[next((folder for folder in reversed(file.parents) if folder not in entered), file.parent)] += 1
    counts = [f"images in {folder} ({count})" for folder, count in images.most_common()]
    counts += [f"{count} {suffix or 'without a suffix'}" for suffix, count in others.most_common()]
    kinds = f"; images are {', '.join(SUFFIXES)}" if others else ""
    return (f"{root}: not read: {', '.join(counts)}{kinds}",) if counts else ()


def _classes(pictures: list[Picture]) -> tuple[str, ...]:
    """The classes, in the order of their numbers."""
    return tuple(sorted({picture.label for picture in pictures if picture.label is not None}))


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _class_name(path: Path) -> str:
    """The name of a class's folder, in composed form: macOS decomposes umlauts."""
    return normalize("NFC", path.name)


def _part(path: Path) -> str | None:
    """``train``, ``test`` or ``unlabelled``, if the folder is called so in a way that leaves no doubt."""
    match = _PART.fullmatch(path.name)
    return None if match is None else (match[1] or "unlabelled").lower()


def _parts(root: Path) -> dict[str, Path]:
    """The folders of the parts that ``root`` is split into.

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
    splits = [path.name for path in _folders(root) if _SPLIT.fullmatch(path.name)]
    if splits and "train" in parts and "test" not in parts:
        what = f"{root} is split into {parts['train'].name} and {', '.join(splits)}"
        raise DataError(f"{what}; call the one to test on 'test', or move it away to test on a share of the others")
    return parts


def _pictures(place: Path, clients_in: str | None) -> list[Picture]:
    """The images of a part by client, class and path; those without a label have the class ``None``."""
    above = [path for path in _folders(place) if _part(path) != "unlabelled"]
    if not clients_in or not any(map(_folders, above)):
        _check_classes(place, above)
        return [Picture(file, _class_name(path)) for path in above for file in _images(path)]
    found: list[Picture] = []
    for client in above:
        for path in _folders(client):
            label = None if _part(path) == "unlabelled" else _class_name(path)
            found += [Picture(file, label, client.name) for file in _images(path, least=0)]
    _check_names(place, _classes(found))
    return found


def _check_names(place: Path, names: Sequence[str]) -> None:
    """Refuse classes with the names of splits, or of images and their masks.

    Raises:
        DataError: all of them have.
    """
    if names and all(_SPLIT.fullmatch(name) or _MASKS.fullmatch(name) or _PART.fullmatch(name) for name in names):
        what = f"{place}: the folders {', '.join(names[:4])} look like splits, or images and their masks, not classes"
        raise DataError(f"{what}; call splits train and test, and give <class>/ or <client>/<class>/ in each")


def _check_classes(place: Path, classes: list[Path]) -> None:
    """Refuse folders that are no classes.

    Raises:
        DataError: there are fewer than two, or they are sites above classes.
    """
    names = ", ".join(path.name for path in classes[:4])
    if len(classes) < 2:
        raise DataError(f"{place} has {len(classes)} class folders; give at least two, one per class")
    if inside := [path for folder in classes for path in _folders(folder) if _part(path) == "unlabelled"]:
        what = f"{inside[0]}: images inside a class would have its label; put {inside[0].name} beside the classes"
        raise DataError(f"{what}, or, if {inside[0].parent.name} is a client, give --data.clients_in folders")
    _check_names(place, [path.name for path in classes])
    shared = sorted(set.intersection(*({path.name for path in _folders(folder)} for folder in classes)))
    if len(shared) > 1:
        raise DataError(
            f"{place}: the folders {names} all have folders {', '.join(shared[:4])}. If those above are clients, and "
            "these are classes, give --data.clients_in folders; otherwise put the images of a class into its folder, "
            "and masks elsewhere"
        )


def _images(place: Path, least: int = 1) -> list[Path]:
    """The images below a folder.

    Raises:
        DataError: there are fewer than ``least``.
    """
    files = sources.files_below(place)
    found = [file for file in files if file.suffix.lower() in SUFFIXES and file.exists()]  # no broken link
    if len(found) < least:
        counts = Counter(file.suffix.lower() or "without a suffix" for file in files)
        only = f", only {', '.join(f'{count} {suffix}' for suffix, count in counts.items())}" if counts else ""
        raise DataError(f"{place} has no images ({', '.join(SUFFIXES)}){only}; add some, or remove the folder")
    return found


def _decoded(root: Path, pictures: Listing, side: int | None, test_fraction: float) -> Arrays:
    parts = [pictures.train, pictures.test] if pictures.test else [pictures.train]
    headers = [(picture.file, *_header(picture.file)) for picture in (*pictures.train, *pictures.test)]
    width, height = (side, side) if side else headers[0][2]
    for file, _, size in headers:
        if not side and size != (width, height):
            raise DataError(
                f"{file} has {size[0]} x {size[1]} pixels, the images before it {width} x {height}; give "
                "--data.side to resize all to the same size"
            )
    channels = 1 if all(grey for _, grey, _ in headers) else 3
    needed = sum(map(len, parts)) * height * width * channels
    check_memory(f"{root} at side {side} (data.side)" if side else str(root), needed, available_bytes())
    images = [sources.decoded([picture.file for picture in part], height, width, channels) for part in parts]
    names = _classes(pictures.train)
    numbers = {name: number for number, name in enumerate(names)} | {None: HIDDEN}
    labels = [np.array([numbers[picture.label] for picture in part]) for part in parts]
    clients = [picture.client for picture in pictures.train]
    train_clients = np.array(clients) if any(clients) else None
    return arrays_of(root, images, labels, names, test_fraction, sha256={}, train_clients=train_clients)


def _header(file: Path) -> tuple[bool, tuple[int, int]]:
    """Whether an image is grey according to its header, and its width and height.

    Raises:
        DataError: it is not a PNG or JPEG image, or has more than 8 bits per channel.
    """
    with sources.opened(file) as image:
        if ";16" in str(image.tile):  # Pillow reads 16-bit colours as 8-bit ones
            raise DataError(f"{file} has more than 8 bits per channel; convert it to 8 bits")
        return image.mode in ("1", "L", "LA"), image.size
