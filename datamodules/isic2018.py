"""ISIC 2018 task 3 (HAM10000): dermatoscopic images of seven kinds of skin lesions."""

from typing import ClassVar

from datamodules.base import FSSLDataModule
from datamodules.io import sources
from datamodules.io.sources import Arrays


class ISIC2018(FSSLDataModule):
    """8 012 training and 2 003 test images, split by image as by RSCFed's authors, with their released constants."""

    num_classes = 7
    train_size = 8_012
    mean = (0.7630332, 0.5456457, 0.57004654)
    std = (0.14092809, 0.15261231, 0.16997086)
    image_size = 224
    zoom_size: ClassVar[int] = 250

    def read(self) -> Arrays:
        """See ``sources.isic2018``."""
        return sources.isic2018(
            self.hparams.data_dir, resize=self.hparams.zoom or self._zoom(), test_resize=self.image_size
        )
