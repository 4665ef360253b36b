"""The digits: their split, their order, and their constants."""

import torch

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


def test_what_one_reader_changes_no_other_sees():
    first, before = Digits().read(), Digits().read().train_images.copy()
    first.train_images[:] = 0
    first.train_labels[:] = 0
    again = Digits().read()
    assert (again.train_images == before).all() and again.train_labels.any()
