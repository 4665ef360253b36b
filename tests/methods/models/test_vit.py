"""ViT-Tiny: size, sides, and what comes from timm (a stand-in with timm's names and shapes)."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from datamodules.common.errors import ConfigError, DataError
from methods.models import build

BLOCK = {
    "norm1.weight": (192,), "norm1.bias": (192,), "attn.qkv.weight": (576, 192), "attn.qkv.bias": (576,),
    "attn.proj.weight": (192, 192), "attn.proj.bias": (192,), "norm2.weight": (192,), "norm2.bias": (192,),
    "mlp.fc1.weight": (768, 192), "mlp.fc1.bias": (768,), "mlp.fc2.weight": (192, 768), "mlp.fc2.bias": (192,),
}  # fmt: skip
SHAPES = {
    "cls_token": (1, 1, 192), "pos_embed": (1, 197, 192), "patch_embed.proj.weight": (192, 3, 16, 16),
    "patch_embed.proj.bias": (192,), **{f"blocks.{i}.{k}": v for i in range(12) for k, v in BLOCK.items()},
    "norm.weight": (192,), "norm.bias": (192,), "head.weight": (1000, 192), "head.bias": (1000,),
}  # fmt: skip


def timm_state() -> dict[str, Tensor]:
    """A state with timm's names: small random numbers."""
    generator = torch.Generator().manual_seed(0)
    return {name: 0.02 * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def block(x: Tensor, state: dict[str, Tensor], i: int) -> Tensor:
    """A pre-norm transformer block written out."""
    s = {k.removeprefix(f"blocks.{i}."): v for k, v in state.items() if k.startswith(f"blocks.{i}.")}
    f = torch.nn.functional
    y = f.layer_norm(x, (192,), s["norm1.weight"], s["norm1.bias"], 1e-6)
    q, k, v = f.linear(y, s["attn.qkv.weight"], s["attn.qkv.bias"]).view(*y.shape[:2], 3, 3, 64).unbind(2)
    heads = f.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
    x = x + f.linear(heads.transpose(1, 2).flatten(2), s["attn.proj.weight"], s["attn.proj.bias"])
    y = f.layer_norm(x, (192,), s["norm2.weight"], s["norm2.bias"], 1e-6)
    y = f.gelu(f.linear(y, s["mlp.fc1.weight"], s["mlp.fc1.bias"]))
    return x + f.linear(y, s["mlp.fc2.weight"], s["mlp.fc2.bias"])


def test_pretrained_weights_arrive_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features equal those of timm's architecture written out with the same tensors."""
    state, asked = timm_state(), []

    def create_model(name: str, pretrained: bool) -> SimpleNamespace:
        asked.append((name, pretrained))
        return SimpleNamespace(state_dict=lambda: state)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    model = build("vit_tiny", 10, image_size=224).eval()
    assert asked == [("vit_tiny_patch16_224", True)]
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    x = torch.nn.functional.conv2d(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=16)
    x = torch.cat([state["cls_token"].expand(2, -1, -1), x.flatten(2).transpose(1, 2)], dim=1) + state["pos_embed"]
    for i in range(12):
        x = block(x, state, i)
    x = torch.nn.functional.layer_norm(x, (192,), state["norm.weight"], state["norm.bias"], 1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model.features(images), x[:, 0], rtol=1e-4, atol=1e-4)


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
