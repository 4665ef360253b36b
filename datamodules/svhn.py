"""SVHN: 32 x 32 crops of house numbers; digit 0 is class 0."""

from datamodules.base import FSSLDataModule
from datamodules.io import sources
from datamodules.io.sources import Arrays


class SVHN(FSSLDataModule):
    """73 257 training and 26 032 test images (``extra`` is not used); constants of RSCFed's released code."""

    num_classes = 10
    train_size = 73_257
    mean = (0.4376821, 0.4437697, 0.47280442)
    std = (0.19803012, 0.20101562, 0.19703614)

    def read(self) -> Arrays:
        """See ``sources.svhn``."""
        return sources.svhn(self.hparams.data_dir)
