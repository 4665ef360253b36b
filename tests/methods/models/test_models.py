"""Networks by name: sizes, the head of the features, formats, dropout in the head, bad input."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from datamodules.common.errors import ConfigError
from methods.models import build
from methods.models.backbone import Backbone

SMALL = {
    "wrn28_2": {"depth": 10, "width": 1},
    "resnet8": {"width": 1},
    "resnet9": {"width": 8},
    "resnet9_plain": {"width": 8},
}
"""Options that make networks small, for tests that do not need all their channels."""


def small(name: str, num_classes: int, **options) -> nn.Module:
    return build(name, num_classes, **SMALL.get(name, {}), **options)


@pytest.mark.parametrize(("name", "size"), [("lenet", 82_278), ("resnet9_plain", 6_568_640), ("mlp", 13_002)])
def test_sizes_by_default(name, size):
    """Of networks that are not compared with others' layer by layer, nor used by the golden runs."""
    with torch.device("meta"):
        model = build(name, 10)
    assert sum(p.numel() for p in model.parameters()) == size


SMALLEST = {
    "small_cnn": 28,
    "resnet9": 28,
    "resnet9_plain": 28,
    "lenet": 16,
    "resnet8": 16,
    "wrn28_2": 8,
    "mlp": 8,
    "resnet18_cifar": 32,
    "resnet18": 32,
}
"""Sides of the smallest images in use."""


@pytest.mark.parametrize(("name", "side"), SMALLEST.items())
def test_the_smallest_images_in_use_fit_and_the_format_changes_no_value(name, side):
    """Convolutions are channels-last."""
    model = small(name, 5, image_size=side).double().eval()
    kernels = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in kernels)
    x = torch.rand(2, 3, side, side, dtype=torch.float64)
    features, last = model.features(x), model(x.to(memory_format=torch.channels_last))
    assert features.shape == (2, model.feature_dim) and last.shape == (2, 5)
    first = model.to(memory_format=torch.contiguous_format)(x)
    torch.testing.assert_close(last, first)


@pytest.mark.parametrize("name", ["small_cnn", "wrn28_2"])
def test_head_gives_the_mean_over_dropout_masks(name):
    model = build(name, 10, head_dropout=0.5).train()
    features = torch.rand(6, model.feature_dim)
    torch.manual_seed(2)
    one_by_one = model.head(features.repeat(11, 1)).view(11, 6, 10)
    torch.manual_seed(2)
    torch.testing.assert_close(model.head(features, passes=11), one_by_one.mean(0))
    assert not torch.allclose(one_by_one[0], one_by_one[1])
    assert torch.equal(model.eval().head(features, passes=11), model.head(features))


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("wrn28", {}, "did you mean"),
        ("methods.models.cnn.Nothing", {}, "Nothing"),
        ("torch.pi", {}, "float"),
        ("os.system", {"command": "exit 1"}, "standard library"),
        ("torch.nn.functional.relu", {}, "num_classes"),
        ("small_cnn", {"widht": 3}, "widht"),
        *((name, {"image_size": 7}, "side 7") for name in ("small_cnn", "mlp", "wrn28_2")),
        *((name, {"head_dropout": 1.0}, "dropout") for name in ("small_cnn", "lenet")),
        ("wrn28_2", {"norm": "layer"}, "layer"),
        ("lenet", {"groups": 3}, "groups"),
        ("resnet18", {"stem": "imagnet"}, "imagnet"),
        ("wrn28_2", {"image_size": 224}, "stages"),
    ],
)
def test_bad_input_is_one_clear_error(name, options, word):
    with pytest.raises(ConfigError, match=word):
        build(name, 10, **options)


def test_dotted_paths_get_the_arguments_they_name(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_classes, image_size, scale=1):\n"
        "        super().__init__()\n"
        "        self.seen = (num_classes, image_size, scale)\n"
        "def grey(num_classes, in_channels): return nn.Conv2d(in_channels, num_classes, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert build("own_nets.Net", 7, 1, 28, scale=3).seen == (7, 28, 3)
    assert build("own_nets.grey", 7, 1).weight.shape == (7, 1, 1, 1)


def test_linear():
    model, x = build("linear", 3, in_features=8), torch.randn(5, 8)
    assert isinstance(model, Backbone) and model.feature_dim == 8
    assert not model.head.bias.any() and sum(p.numel() for p in model.parameters()) == 27
    torch.testing.assert_close(model(x), x @ model.head.weight.T)
    assert torch.equal(model.features(x), x)


@pytest.mark.parametrize("side", [8, 20, 32])
def test_a_perceptron_sees_the_mean_of_every_cell(side):
    model, x = build("mlp", 4, image_size=side), torch.rand(5, 3, side, side)
    hidden = model.hidden(F.adaptive_avg_pool2d(x, 8).flatten(1)).relu()
    assert torch.equal(model.features(x), hidden)
