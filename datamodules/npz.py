"""Your own images in one .npz file, in MedMNIST's format; needs --data.file."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datamodules.base import FSSLDataModule
from datamodules.common.errors import DataError
from datamodules.common.options import Share
from datamodules.io.npz import read_npz
from datamodules.io.own import arrays_of, located
from datamodules.io.sources import FIELDS, Arrays, sha256_of
from datamodules.partition.sites import HIDDEN

UNLABELLED = ("unlabelled_images", "unlabeled_images")


class Npz(FSSLDataModule):
    """Arrays of one file; classes, side, mean and deviation come from the training images.

    Args:
        file: .npz file with ``train_images`` (uint8 [N, H, W] or [N, H, W, 1 or 3], or vectors float32 [N, versions,
            d]), ``train_labels`` (integers [N] or [N, 1], 0 to C - 1, or -1 without a label), and optionally
            ``test_images``, ``test_labels``, ``class_names`` (str [C]; default: their numbers), ``unlabelled_images``,
            and ``client_ids`` [N] of the training images, perhaps also of the unlabelled ones behind them; a relative
            path is looked up in the data directory, then in the current folder.
        test_fraction: share of each class's images that becomes the test set, the same in every run, if the file has no
            test images.
        clients_in: ``client_ids``: clients are those that this array names.
        **base: see ``FSSLDataModule``.

    Raises:
        ConfigError: ``test_fraction`` is not a share, or the arrays do not fit into memory (in ``read`` and ``setup``).
        DataError: the file is missing or damaged, an array is missing or has the wrong type, a class has no training
            image, or a label is outside 0..C-1 (in ``read`` and ``setup``).
    """

    measured = True

    def __init__(
        self, file: str, test_fraction: Share = 0.2, clients_in: Literal["client_ids"] | None = None, **base: Any
    ) -> None:
        super().__init__(**base)

    def digests(self) -> dict[str, str]:
        """That of the file."""
        file = located(self.hparams, "file")
        return {file.name: sha256_of(file)}

    def read(self) -> Arrays:
        """The arrays of the file."""
        file, digests = located(self.hparams, "file"), self.digests()
        found = read_npz(file, {*FIELDS, *UNLABELLED, "client_ids"})
        parts = ("train", "test") if {"test_images", "test_labels"} & set(found) else ("train",)
        needed = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
        if missing := [name for name in needed if name not in found]:
            raise DataError(f"{file} has no {missing[0]}; it needs {', '.join(needed)}")
        images = [_with_channels(found[f"{part}_images"]) for part in parts]
        labels = [found[f"{part}_labels"] for part in parts]
        labels = [array[:, 0] if array.shape[1:] == (1,) else array for array in labels]
        whole = labels[0].dtype.kind in "iu"  # otherwise ``arrays_of`` refuses them
        top = min(int(labels[0].max(initial=0)), len(labels[0])) if whole else 0  # not 10^12 names where labels are ids
        names = tuple(map(str, found["class_names"].tolist() if "class_names" in found else range(top + 1)))
        clients = found.get("client_ids")
        notes: tuple[str, ...] = ()
        if self.hparams.clients_in and clients is None:
            raise DataError(
                f"{file} has no client_ids; add the client of every training image, or leave data.clients_in out"
            )
        if clients is not None and not self.hparams.clients_in:
            clients, notes = None, (f"{file}: not read: client_ids; to use them, give --data.clients_in client_ids",)
        for name in (name for name in UNLABELLED if name in found):
            extra = _with_channels(found[name])
            if (extra.dtype, extra.shape[1:]) != (images[0].dtype, images[0].shape[1:]):
                are = " and ".join(f"{array.dtype} {list(array.shape)}" for array in (extra, images[0]))
                raise DataError(f"{file}: {name} and train_images must have one type and size; they are {are}")
            if clients is not None and len(clients) == len(labels[0]):
                nobody = "" if clients.dtype.kind == "U" else -1
                clients = np.array(clients.tolist() + [nobody] * len(extra))  # whole numbers get a sign
            images[0] = np.concatenate([images[0], extra])
            labels[0] = np.concatenate([labels[0], np.full(len(extra), HIDDEN)])
        more = {"sha256": digests, "train_clients": clients, "notes": notes}
        return arrays_of(file, images, labels, names, self.hparams.test_fraction, **more)


def _with_channels(images: NDArray[Any]) -> NDArray[Any]:
    return images[..., None] if images.ndim == 3 and images.dtype == np.uint8 else images
