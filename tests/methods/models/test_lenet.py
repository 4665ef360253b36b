"""LeNet with norms over groups of channels."""

import torch
import torch.nn.functional as F

from methods.models import build


def grouped(x, groups):
    """Maps with mean 0 and variance 1 over each image's groups of channels."""
    parts = x.reshape(len(x), groups, -1)
    var, mean = torch.var_mean(parts, dim=2, keepdim=True, correction=0)
    return ((parts - mean) / (var + 1e-5).sqrt()).reshape(x.shape)


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
        h = grouped(h, 4).relu()
    h = (h.flatten(1) @ w["hidden.weight"].T + w["hidden.bias"]).relu()
    torch.testing.assert_close(model.features(x), h)
    torch.testing.assert_close(model(x), h @ w["head.weight"].T + w["head.bias"])


def test_group_norm_keeps_no_statistics():
    """An image's logits depend neither on its batch nor on what was seen before, in either mode."""
    torch.manual_seed(3)
    model = build("lenet", 10, 1, 28).double()
    x = torch.rand(6, 1, 28, 28, dtype=torch.float64)
    first = model.train()(x)
    model(9 * x)
    torch.testing.assert_close(model(x[2:3]), first[2:3])
    torch.testing.assert_close(model.eval()(x), first)
    assert not list(model.buffers())
    assert len(list(build("lenet", 10, 1, 28, norm="running").buffers())) == 6
