"""Your own images: PNG or JPEG files in one folder per class; needs --data.root."""

from pathlib import Path
from typing import Any, Literal

from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError
from datamodules.common.options import Share
from datamodules.io import own
from datamodules.io.sources import Arrays


class Folder(FSSLDataModule):
    """PNG or JPEG files; classes, side, channels, mean and deviation come from the training images.

    Images must have the same size, unless ``side`` is given: then they become squares of this side, less the
    ``border``. They are decoded once and cached in the data directory as ``folder-<digest>.npz``. Hidden files are
    ignored, and transparency is dropped.

    Args:
        root: folder with ``train/<class>/`` and ``test/<class>/``, or with ``<class>/`` only, and perhaps with images
            in ``unlabeled/``, whose class nobody knows; a relative path is looked up in the data directory, then in
            the current folder.
        test_fraction: share of each class's images that becomes the test set, the same in every run, if there is no
            folder ``test``.
        clients_in: ``folders``: training images are in ``<client>/<class>/``.
        **base: see ``FSSLDataModule``.

    Raises:
        ConfigError: ``test_fraction`` is not a share, ``border`` leaves nothing of ``side``, or the images do not fit
            into memory (in ``read`` and ``setup``).
        DataError: the folder is missing, its classes do not match, or an image cannot be read or has a different size
            (in ``read`` and ``setup``).
    """

    measured = True

    def __init__(
        self, root: str, test_fraction: Share = 0.2, clients_in: Literal["folders"] | None = None, **base: Any
    ) -> None:
        super().__init__(**base)
        side, border = self.hparams.side, self.hparams.border
        if side and side <= 2 * border:
            raise ConfigError(
                f"data.side={side} less a data.border={border} on both sides leaves no image; decrease it"
            )

    def digests(self) -> dict[str, str]:
        """That of all images and their paths."""
        return own.folder_digest(self._root(), self.hparams.clients_in)

    def read(self) -> Arrays:
        """See ``own.folder``."""
        h = self.hparams
        side = h.side - 2 * h.border if h.side else None
        return own.folder(self._root(), h.data_dir, side, h.test_fraction, h.clients_in)

    def expected_size(self) -> int:
        """Images in the folders for training."""
        return len(own.listing(self._root(), self.hparams.clients_in).train)

    def _root(self) -> Path:
        return own.located(self.hparams.root, self.hparams.data_dir, "root")
