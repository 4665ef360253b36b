"""Images of your own, PNG or JPEG files in a folder per class; needs --data.root."""

from typing import Any

from datamodules.base import FSSLDataModule
from datamodules.io import own
from datamodules.io.sources import Arrays


class Folder(FSSLDataModule):
    """PNG or JPEG files; classes, side, channels, mean and deviation are found in the training images.

    Images must have one size, unless ``side`` is given: then they become squares of this side. They are decoded once
    and kept in the data directory as ``folder-<digest>.npz``. Files of other kinds are left out.

    Args:
        root: folder with ``train/<class>/`` and ``test/<class>/``, or with ``<class>/`` alone; a relative path is
            looked for in the data directory, then in the current folder.
        test_fraction: share of each class's images that becomes the test set, the same ones in every run, if there is
            no folder ``test``.
        **base: see ``FSSLDataModule``.

    Raises:
        ConfigError: ``test_fraction`` is no share.
        DataError: the folder is missing, its classes do not fit, or an image cannot be read or has another size (in
            ``read`` and ``setup``).
    """

    measured = True

    def __init__(self, root: str, test_fraction: float = 0.2, **base: Any) -> None:
        super().__init__(**base)
        own.check_share(test_fraction)

    def read(self) -> Arrays:
        """See ``own.folder``."""
        h = self.hparams
        root = own.located(h.root, h.data_dir, "root")
        return own.folder(root, h.data_dir, h.side, h.test_fraction)
