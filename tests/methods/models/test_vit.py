"""ViT-Tiny: size, sides, and what comes from timm (a stand-in)."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from datamodules.common.errors import ConfigError, DataError
from methods.models import build


def test_pretrained_features_are_those_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its network without a head."""
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten())  # 3 x 8 x 8 = 192 features
    asked = {}

    def create_model(name: str, **options: Any) -> torch.nn.Module:
        asked[name] = options
        return network

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    model = build("vit_tiny", 10, image_size=224)
    assert asked == {"vit_tiny_patch16_224": {"pretrained": True, "num_classes": 0}}
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.features(images), network(images)) and model(images).shape == (2, 10)


def test_size() -> None:
    """The sheet's number of parameters, and logits of the right shape at a smaller side."""
    assert sum(p.numel() for p in build("vit_tiny_scratch", 10, image_size=224).parameters()) == 5_526_346
    small = build("vit_tiny_scratch", 10, image_size=32)
    assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(("name", "side"), [("vit_tiny_scratch", 30), ("vit_tiny", 32)])
def test_sides_that_do_not_fit(name: str, side: int) -> None:
    with pytest.raises(ConfigError, match="side"):
        build(name, 10, image_size=side)


def test_weights_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm is missing, or offline."""
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match="pip install"):
        build("vit_tiny", 10, image_size=224)

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=offline))
    with pytest.raises(DataError, match="no route"):
        build("vit_tiny", 10, image_size=224)
