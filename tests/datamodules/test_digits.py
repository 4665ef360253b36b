"""The digits: their split, their order, and their constants."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from datamodules.digits import Digits
from federations import make_data


def test_the_constants_are_those_of_the_training_images():
    """To the digits that are given."""
    data, arrays = make_data(), Digits().read()
    pixels = torch.from_numpy(arrays.train_images).double() / 255
    assert len(data.train_images) == data.train_size == 1437 and len(data.test_labels) == 360
    assert round(float(pixels.mean()), 4) == data.mean[0]
    assert round(float(pixels.std()), 4) == data.std[0]
    assert data.class_names == tuple("0123456789") and data.sha256 == arrays.sha256
    data.prepare_data()


def test_a_stratified_split():
    arrays = Digits().read()
    assert arrays.train_images.shape == (1437, 32, 32, 3) and arrays.test_images.shape == (360, 32, 32, 3)
    assert arrays.class_names == tuple("0123456789")
    every, held_out = np.bincount(load_digits().target), np.bincount(arrays.test_labels)
    assert (abs(held_out - every * 360 / 1797) < 1).all()
    assert (np.bincount(arrays.train_labels) + held_out == every).all()
    assert list(arrays.sha256) == ["digits.csv.gz"] and len(arrays.sha256["digits.csv.gz"]) == 64


def test_images_are_the_enlarged_originals_in_their_order():
    arrays, original = Digits().read(), load_digits()
    assert (arrays.train_images == arrays.train_images[..., :1]).all()
    assert arrays.train_images.max() == 255 and arrays.train_images.min() == 0
    small = torch.from_numpy(original.images)[:, None] * 255 / 16
    large = torch.nn.functional.interpolate(small, size=32, mode="bilinear")[:, 0].numpy()
    used = []
    for images, labels in ((arrays.train_images, arrays.train_labels), (arrays.test_images, arrays.test_labels)):
        nearest = [int(abs(large - image).max(axis=(1, 2)).argmin()) for image in images[:20, ..., 0]]
        assert abs(large[nearest] - images[:20, ..., 0]).max() <= 1.5  # rounding to grey levels, twice
        assert original.target[nearest].tolist() == labels[:20].tolist()
        assert nearest == sorted(set(nearest))
        used += nearest
    assert len(set(used)) == 40


def test_what_one_reader_changes_no_other_sees():
    first, before = Digits().read(), Digits().read().train_images.copy()
    first.train_images[:] = 0
    first.train_labels[:] = 0
    again = Digits().read()
    assert (again.train_images == before).all() and again.train_labels.any()
