"""The small CNN: published layers and weights, its pooled convolution, its head."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from methods.models import build
from methods.models.cnn import conv_pool


def test_it_starts_from_the_published_weights():
    torch.manual_seed(1337)
    first = build("small_cnn", 10).conv1.weight.flatten()[:5]
    expected = torch.tensor([-0.0973835, -0.0010123, 0.0284283, -0.0179121, -0.0691923])
    torch.testing.assert_close(first, expected, rtol=0, atol=5e-8)


def test_it_is_the_published_chain_of_layers():
    torch.manual_seed(3)
    model = build("small_cnn", 10)
    w = list(model.parameters())
    x = torch.rand(4, 3, 32, 32)
    h = F.max_pool2d(F.conv2d(x, w[0], w[1]).relu(), 2)
    assert h.shape == (4, 6, 14, 14)
    h = F.max_pool2d(F.conv2d(h, w[2], w[3]).relu(), 2)
    assert h.shape == (4, 16, 5, 5)
    h = (h.reshape(4, 400) @ w[4].T + w[5]).relu()
    h = (h @ w[6].T + w[7]).relu()
    torch.testing.assert_close(model.features(x), h)
    h = (h @ w[8].T + w[9]).relu()
    h = h @ w[10].T + w[11]
    assert h.shape == (4, 256)
    torch.testing.assert_close(model(x), h @ w[12].T + w[13])


@pytest.mark.parametrize("side", [8, 11])
def test_convolution_with_pooling_is_both_in_turn(side):
    """Values and gradients, also where a window shows four equal patches."""
    conv = nn.Conv2d(3, 6, 5).double()
    x = torch.randn(4, 3, side, side, dtype=torch.float64)
    x[0] = 1.5
    x.requires_grad_()
    weight = torch.randn(4, 6, (side - 4) // 2, (side - 4) // 2, dtype=torch.float64)
    results = []
    for y in (conv_pool(conv, x), F.max_pool2d(conv(x), 2)):
        results.append([y, *torch.autograd.grad((y * weight).sum(), [conv.weight, conv.bias, x])])
    torch.testing.assert_close(*results)


def test_head_dropout_sits_before_the_projection():
    head = build("small_cnn", 3, head_dropout=0.25).head
    with torch.no_grad():
        head.projection.weight.zero_()
    features, last = torch.rand(5, 84), head.classifier(head.projection.bias)
    torch.testing.assert_close(head(features), last.expand(5, 3))


def test_pooled_maps_are_normalised_within_an_image():
    """Two convolutions, each with pooling, norm (at first without scale) and ReLU, 84 units, a linear classifier."""
    torch.manual_seed(3)
    model = build("lenet", 10, 1, 28).double()
    w = dict(model.named_parameters())
    x = torch.rand(5, 1, 28, 28, dtype=torch.float64)
    h = x
    for k, channels in ((1, 16), (2, 32)):
        h = F.max_pool2d(F.conv2d(h, w[f"conv{k}.weight"], w[f"conv{k}.bias"]), 2)
        assert h.shape[1] == channels
        h = F.group_norm(h, 4).relu()
    h = (h.flatten(1) @ w["hidden.weight"].T + w["hidden.bias"]).relu()
    torch.testing.assert_close(model.features(x), h)
    torch.testing.assert_close(model(x), h @ w["head.weight"].T + w["head.bias"])
