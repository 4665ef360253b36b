"""Your own images in one .npz file, in MedMNIST's format; needs --data.file."""

from pathlib import Path
from typing import Any, Literal

from datamodules.base import FSSLDataModule
from datamodules.common.options import Share
from datamodules.io import own
from datamodules.io.npz import read_npz
from datamodules.io.sources import Arrays


class Npz(FSSLDataModule):
    """Arrays of one file; classes, side, channels, mean and deviation come from the training images.

    Args:
        file: .npz file with ``train_images`` (uint8 [N, H, W] or [N, H, W, 1 or 3]), ``train_labels`` (integers [N], 0
            to C - 1, or -1 without a label), and optionally ``test_images``, ``test_labels``, ``class_names``,
            ``unlabelled_images`` and ``client_ids``; a relative path is looked up in the data directory, then in the
            current folder.
        test_fraction: share of each class's images that becomes the test set, the same in every run, if the file has no
            test images.
        clients_in: ``client_ids``: clients are those that this array names for every training image.
        **base: see ``FSSLDataModule``.

    Raises:
        ConfigError: ``test_fraction`` is not a share.
        DataError: the file is missing or damaged, or its arrays do not match (in ``read`` and ``setup``).
    """

    measured = True

    def __init__(
        self, file: str, test_fraction: Share = 0.2, clients_in: Literal["client_ids"] | None = None, **base: Any
    ) -> None:
        super().__init__(**base)

    def digests(self) -> dict[str, str]:
        """That of the file."""
        return own.npz_digest(self._file())

    def read(self) -> Arrays:
        """See ``own.npz``."""
        return own.npz(self._file(), self.hparams.test_fraction, self.hparams.clients_in)

    def expected_size(self) -> int:
        """Training images that the file has, with or without a label."""
        return sum(map(len, read_npz(self._file(), {"train_labels", *own.UNLABELLED}).values()))

    def _file(self) -> Path:
        return own.located(self.hparams.file, self.hparams.data_dir, "file")
