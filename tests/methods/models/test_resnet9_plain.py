"""ResNet-9 without norms: published layers and law of its weights."""

import pytest
import torch
import torch.nn.functional as F

from methods.models import build


def test_it_is_the_published_chain_of_layers():
    """No bias, no normalisation; ReLU before every pooling, none after a sum."""
    torch.manual_seed(3)
    model = build("resnet9_plain", 10, width=4).double()
    w = list(model.parameters())
    assert [p.ndim for p in w] == [4] * 8 + [2]
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    h = F.conv2d(x, w[0], padding=1).relu()
    h = F.max_pool2d(F.conv2d(h, w[1], padding=1).relu(), 2)
    h = h + F.conv2d(F.conv2d(h, w[2], padding=1).relu(), w[3], padding=1).relu()
    h = F.max_pool2d(F.conv2d(h, w[4], padding=1).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, w[5], padding=1).relu(), 2)
    h = h + F.conv2d(F.conv2d(h, w[6], padding=1).relu(), w[7], padding=1).relu()
    h = F.max_pool2d(h, 4).flatten(1)
    torch.testing.assert_close(model(x), h @ w[8].T)


def test_it_starts_from_a_cut_normal_law_of_variance_one_over_fan_in():
    torch.manual_seed(0)
    for weight in build("resnet9_plain", 10).parameters():
        scaled = weight.detach() * weight[0].numel() ** 0.5
        assert float(scaled.var()) == pytest.approx(1.0, rel=4 / weight.numel() ** 0.5)
        assert float(scaled.abs().max()) < 2 / 0.8796
