"""Conv-6: published layers, and dropout in training only."""

import torch
import torch.nn.functional as F

from methods.models import build
from methods.models.backbone import draw_from


def test_channels_and_features_are_dropped_in_training_only():
    torch.manual_seed(0)
    model = build("conv6", 10, width=4, channel_dropout=0.5, head_dropout=0.0)
    draw_from(model, torch.Generator().manual_seed(0))
    x = torch.rand(2, 3, 32, 32)
    maps = []
    model.drop.register_forward_hook(lambda *a: maps.append((a[1][0], a[2])))
    model(x)
    seen, left = maps[0]
    dropped = (left == 0).all(3).all(2) & (seen != 0).any(3).any(2)
    assert bool(dropped.any())
    torch.testing.assert_close(left[~dropped], 2 * seen[~dropped])
    model.eval()
    assert torch.equal(model(x), model(x))
    assert torch.equal(maps[-1][0], maps[-1][1])


def test_it_is_the_published_chain_of_layers():
    """Also for a mean over dropout masks, which the hidden layers do not commute with."""
    torch.manual_seed(3)
    model = build("conv6", 10, width=2).double()
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    h = x
    for block in (model.block1, model.block2, model.block3):
        conv1, norm, _, conv2, _ = block
        h = F.batch_norm(F.conv2d(h, conv1.weight, conv1.bias, padding=1), norm.running_mean, norm.running_var)
        h = F.max_pool2d(F.conv2d(h.relu(), conv2.weight, conv2.bias, padding=1).relu(), 2)
    model.eval()
    torch.testing.assert_close(model.features(x), h.flatten(1))
    w = list(model.head.parameters())
    h = (h.flatten(1) @ w[0].T + w[1]).relu()
    h = (h @ w[2].T + w[3]).relu()
    assert [p.shape[0] for p in w[::2]] == [64, 32, 10]
    torch.testing.assert_close(model(x), h @ w[4].T + w[5])
    model.train()
    features = torch.rand(4, model.feature_dim, dtype=torch.float64)
    generator = torch.Generator()
    draw_from(model, generator.manual_seed(1))
    several = model.head(features, passes=3)
    generator.manual_seed(1)
    torch.testing.assert_close(several, torch.stack([model.head(features) for _ in range(3)]).mean(dim=0))
