"""The perceptron on means of cells."""

import pytest
import torch
from torch.nn import functional as F

from methods.models import build


def test_it_sees_the_mean_of_every_cell():
    """A shuffle of the pixels within a cell changes nothing, one of the cells does."""
    torch.manual_seed(0)
    model, x = build("mlp", 4, image_size=16).double(), torch.rand(2, 3, 16, 16, dtype=torch.float64)
    cells = x.unfold(2, 2, 2).unfold(3, 2, 2)
    turned = cells.transpose(-1, -2).permute(0, 1, 2, 4, 3, 5).reshape(x.shape)
    torch.testing.assert_close(model(turned), model(x))
    assert not torch.allclose(model(x.flip(3)), model(x))


@pytest.mark.parametrize("side", [8, 20, 32])
def test_cells_of_any_size_are_averaged_alike(side):
    model, x = build("mlp", 4, image_size=side), torch.rand(5, 3, side, side)
    hidden = model.hidden(F.adaptive_avg_pool2d(x, 8).flatten(1)).relu()
    assert torch.equal(model.features(x), hidden)
