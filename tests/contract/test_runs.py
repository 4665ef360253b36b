"""Checks of whole runs: what they put in the place of data, for data sets that are not ours, too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmark.contract.federations import FewerDigits
from benchmark.contract.isolation import (
    unlabelled,
    with_other_hidden_labels,
    with_other_test_images,
    with_other_unlabelled_images,
)
from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays
from datamodules.partition.sites import true_labels


class Mine(FSSLDataModule):
    """Somebody's own images, by what docs/data.md says of one."""

    num_classes, mean, std, image_size = 10, (0.5,), (0.3,), 24

    def read(self) -> Arrays:
        """Two hundred digits upside down."""
        found = FewerDigits().read()
        images = found.train_images[:200, ::-1].copy()
        return replace(found, train_images=images, train_labels=found.train_labels[:200])


class Vectors(FSSLDataModule):
    """Somebody's own feature vectors."""

    num_classes, mean, std = 3, (), ()

    def read(self) -> Arrays:
        """Three versions of 90 vectors of 5 numbers."""
        drawn, labels = np.random.default_rng(0).normal(size=(90, 3, 5)), np.arange(90) % 3
        return Arrays(
            drawn.astype(np.float32), labels, drawn[:30, :1].astype(np.float32), labels[:30], tuple("abc"), {}
        )


def own(kind: type[FSSLDataModule]) -> FSSLDataModule:
    """A data module of somebody else, set up over six clients."""
    data = kind(
        num_clients=6, partition="iid", pipeline="feature_versions" if kind is Vectors else "randaugment_levels_cutout"
    )
    data.setup()
    return data


@pytest.mark.parametrize("kind", [Mine, Vectors, FewerDigits])
def test_what_is_replaced_and_what_stays(kind: type[FSSLDataModule]) -> None:
    """Images and labels change exactly where a check says so, by themselves, and no site holds other ones."""
    data, plain = own(kind), own(kind)
    hidden = unlabelled(data)
    with_other_unlabelled_images(data)
    assert torch.equal((data.train_images != plain.train_images).flatten(1).any(1), hidden)
    assert torch.equal(true_labels(data), true_labels(plain)) and torch.equal(data.test_images, plain.test_images)
    with_other_hidden_labels(data)
    assert torch.equal(true_labels(data) != true_labels(plain), hidden)
    with_other_test_images(data)
    assert (data.test_images != plain.test_images).flatten(1).any(1).all()
    assert (data.test_labels != plain.test_labels).all() and data.test_labels.max() < data.num_classes
    for site, other in zip([*data.clients, data.server], [*plain.clients, plain.server], strict=True):
        assert torch.equal(site.labelled, other.labelled) and torch.equal(site.labels, other.labels)
        assert torch.equal(site.unlabelled, other.unlabelled)
