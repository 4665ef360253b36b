"""Data modules with other contents in places that a check names."""

import torch
from torch import Tensor

from datamodules.base import FSSLDataModule


def with_other_unlabelled_images(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with noise for all training images without a label."""
    images, hidden = data.train_images, unlabelled(data)
    data.overwrite(train_images=torch.where(hidden.view(-1, *[1] * (images.ndim - 1)), noise(images), images))
    return data


def with_other_hidden_labels(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with a wrong label for every training image without one."""
    labels, hidden, classes = data.train_labels, unlabelled(data), data.num_classes
    by = torch.arange(len(labels)) % (classes - 1) + 1
    data.overwrite(train_labels=torch.where(hidden, (labels + by) % classes, labels))
    return data


def with_other_test_images(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with noise for test images and wrong test labels."""
    data.overwrite(test_images=noise(data.test_images), test_labels=(data.test_labels + 1) % data.num_classes)
    return data


def noise(images: Tensor) -> Tensor:
    """Noise in the form of these images or feature vectors."""
    generator = torch.Generator().manual_seed(0)
    if images.is_floating_point():
        return torch.randn(images.shape, generator=generator, dtype=images.dtype)
    return torch.randint(256, images.shape, generator=generator, dtype=images.dtype)


def unlabelled(data: FSSLDataModule) -> Tensor:
    """Which training images no site holds with a label, bool ``[n]``."""
    hidden = torch.ones(data.num_images, dtype=torch.bool)
    for site in [*data.clients, data.server]:
        hidden[site.labelled] = False
    return hidden
