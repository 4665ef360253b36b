"""Options of the data modules that all data sets share."""

import numpy as np
import torch

from datamodules.digits import Digits


def digits(**args: object) -> Digits:
    data = Digits(num_clients=4, labelled_clients=4, **args)
    data.setup()
    return data


def test_side_and_zoom():
    """Views of the side asked for; the windows of the training view come from the larger picture."""
    data = digits(side=48, zoom=56)
    assert data.image_size == 48 and Digits.image_size == 32
    index = torch.arange(3)
    weak = data.take("weak", index, torch.Generator().manual_seed(0))
    assert weak.shape == (3, 3, 48, 48)
    assert next(data.test_blocks(5))[1]().shape == (5, 3, 48, 48)
    assert {tuple(p.shape[1:3]) for p in data._prepared.values()} == {(56, 56)}


def test_split_classes():
    """Images of later classes go to nobody; by default everybody's images add up to all."""
    labels = digits()._labels.numpy()
    for classes, wanted in ((None, len(labels)), (4, int(np.sum(labels < 4)))):
        parts = digits(split_classes=classes).partition.labelled
        held = np.concatenate(parts)
        assert len(held) == len(set(held.tolist())) == wanted
        assert classes is None or labels[held].max() == classes - 1
