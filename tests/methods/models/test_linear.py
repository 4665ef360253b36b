"""The linear classifier of feature vectors."""

import torch

from methods.models import build
from methods.models.backbone import Backbone


def test_linear():
    model, x = build("linear", 3, in_features=8), torch.randn(5, 8)
    assert isinstance(model, Backbone) and model.feature_dim == 8
    assert not model.head.bias.any() and sum(p.numel() for p in model.parameters()) == 27
    torch.testing.assert_close(model(x), x @ model.head.weight.T)
    assert torch.equal(model.features(x), x)
