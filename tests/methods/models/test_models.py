import json
import math
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from datamodules.common.errors import ConfigError, DataError
from methods.models import MODELS, build
from methods.models.backbone import Backbone, draw_from
from methods.models.cnn import conv_pool, pool
from methods.models.norm import normalisation
from methods.models.resnet import ResNet18

GOLDEN = Path(__file__).parents[2] / "golden"


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "options", "parameters", "tensors", "state", "feature_dim"),
    [
        ("small_cnn", 10, {}, 92_626, 14, 14, 84),
        ("small_cnn", 100, {}, 115_756, 14, 14, 84),
        ("lenet", 10, {}, 82_278, 12, 12, 84),
        ("resnet18_cifar", 7, {}, 11_564_615, 66, 126, 512),
        ("resnet18", 10, {}, 11_181_642, 62, 122, 512),
        ("wrn28_2", 10, {"norm": "batch"}, 1_467_610, 80, 80, 128),
        ("wrn28_2", 100, {"norm": "batch"}, 1_479_220, 80, 80, 128),
        ("wrn28_2", 10, {"norm": "group"}, 1_467_610, 80, 80, 128),
        ("wrn28_8", 100, {}, 23_401_012, 80, 155, 512),
        ("resnet8", 10, {}, 1_227_594, 29, 56, 256),
        ("resnet8", 100, {}, 1_250_724, 29, 56, 256),
        ("resnet8", 10, {"width": 1}, 78_042, 29, 56, 64),
        ("resnet9", 10, {}, 6_575_370, 34, 58, 512),
        ("resnet9_plain", 10, {}, 6_568_640, 9, 9, 512),
        ("conv6", 10, {}, 5_852_170, 24, 33, 4096),
        ("mlp", 10, {}, 13_002, 4, 4, 64),
    ],
)
def test_sizes_are_the_published_ones(name, classes, options, parameters, tensors, state, feature_dim):
    with torch.device("meta"):
        model = build(name, classes, **options)
    assert count(model) == parameters
    assert len(list(model.parameters())) == tensors
    assert len(model.state_dict()) == state
    assert model.feature_dim == feature_dim


def test_sizes_for_grey_images():
    with torch.device("meta"):
        assert count(build("lenet", 10, 1, 28)) == 57_286
        assert count(build("wrn28_2", 10, 1)) == 1_467_322
        assert count(build("resnet9", 10, 1)) == 6_574_218
        assert build("resnet18", 10, 1).backbone.conv1.weight.shape == (64, 1, 7, 7)


def test_the_stock_resnet_buffers():
    with torch.device("meta"):
        assert sum(b.numel() for b in build("resnet18", 10).buffers()) == 9_620
        norms = [m for m in build("resnet18_cifar", 7).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 20


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("small_cnn", 32),
        ("small_cnn", 28),
        ("lenet", 28),
        ("lenet", 16),
        ("resnet18_cifar", 32),
        ("resnet18", 32),
        ("wrn28_2", 32),
        ("wrn28_2", 8),
        ("resnet8", 32),
        ("resnet8", 16),
        ("resnet9", 32),
        ("resnet9", 28),
        ("resnet9_plain", 32),
        ("resnet9_plain", 28),
        ("conv6", 32),
        ("conv6", 16),
        ("mlp", 32),
        ("mlp", 8),
    ],
)
def test_forward_is_the_head_of_the_features(name, side):
    model = build(name, 5, image_size=side).eval()
    x = torch.rand(2, 3, side, side)
    features = model.features(x)
    assert features.shape == (2, model.feature_dim)
    logits = model(x)
    assert logits.shape == (2, 5)
    assert torch.equal(logits, model.head(features))


@pytest.mark.parametrize(
    "name",
    ["small_cnn", "lenet", "resnet18_cifar", "resnet18", "wrn28_2", "resnet8", "resnet9", "resnet9_plain", "conv6"],
)
def test_convolutions_are_channels_last_and_the_format_changes_no_value(name):
    torch.manual_seed(0)
    model = build(name, 4).double().eval()
    kernels = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in kernels)
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    last = model(x.to(memory_format=torch.channels_last))
    first = model.to(memory_format=torch.contiguous_format)(x)
    torch.testing.assert_close(last, first)


def test_the_mlp_sees_the_mean_of_every_cell():
    """A shuffle of the pixels within a cell changes nothing, one of the cells does."""
    torch.manual_seed(0)
    model, x = build("mlp", 4, image_size=16).double(), torch.rand(2, 3, 16, 16, dtype=torch.float64)
    cells = x.unfold(2, 2, 2).unfold(3, 2, 2)
    turned = cells.transpose(-1, -2).permute(0, 1, 2, 4, 3, 5).reshape(x.shape)
    torch.testing.assert_close(model(turned), model(x))
    assert not torch.allclose(model(x.flip(3)), model(x))


@pytest.mark.parametrize(
    "name", ["small_cnn", "lenet", "resnet18", "wrn28_2", "resnet8", "resnet9", "resnet9_plain", "conv6", "mlp"]
)
def test_every_head_takes_several_passes(name):
    """Without dropout they are all alike."""
    model = build(name, 4).eval()
    features = model.features(torch.rand(2, 3, 32, 32))
    torch.testing.assert_close(model.head(features, passes=3), model.head(features))


def test_small_cnn_starts_from_the_published_weights():
    torch.manual_seed(1337)
    first = build("small_cnn", 10).conv1.weight.flatten()[:5]
    expected = torch.tensor([-0.0973835, -0.0010123, 0.0284283, -0.0179121, -0.0691923])
    torch.testing.assert_close(first, expected, rtol=0, atol=5e-8)


def test_small_cnn_is_the_published_chain_of_layers():
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


@pytest.mark.parametrize("name", ["small_cnn", "wrn28_2"])
def test_head_dropout_keeps_state_and_expectation(name):
    torch.manual_seed(1)
    plain = build(name, 10)
    torch.manual_seed(1)
    dropping = build(name, 10, head_dropout=0.5)
    assert list(plain.state_dict()) == list(dropping.state_dict())
    features = torch.rand(6, plain.feature_dim)
    expected = plain.head(features)
    assert torch.equal(dropping.eval().head(features), expected)

    dropping.train()
    passes = dropping.head(features.repeat(4000, 1)).view(4000, 6, 10)
    spread = float(passes.std(0).max().detach())
    torch.testing.assert_close(passes.mean(0), expected, rtol=0, atol=5 * spread / math.sqrt(4000))
    assert spread > 1e-3


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


def test_head_dropout_sits_before_the_projection():
    head = build("small_cnn", 3, head_dropout=0.25).head
    with torch.no_grad():
        head.projection.weight.zero_()
    features, last = torch.rand(5, 84), head.classifier(head.projection.bias)
    torch.testing.assert_close(head(features), last.expand(5, 3))


def test_resnet_stems_keep_or_reduce_the_resolution():
    x = torch.rand(1, 3, 32, 32)
    for name, side in (("resnet18_cifar", 4), ("resnet18", 1)):
        net = build(name, 3).eval().backbone
        maps = net.layer4(net.layer3(net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x))))))))
        assert maps.shape == (1, 512, side, side)
        torch.testing.assert_close(net(x), maps.mean((2, 3)))


def test_stock_resnet_is_torchvisions_own():
    from torchvision.models import resnet18

    torch.manual_seed(7)
    ours = build("resnet18", 10).eval()
    torch.manual_seed(7)
    stock = resnet18()
    stock.fc = nn.Linear(512, 10)
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), stock.eval()(x))


def built_as_released(classes):
    """RSCFed's ISIC network as a flat list of layers in the released order, initialised like it."""
    convolutions = [nn.Conv2d(3, 64, 3, padding=1, bias=False)]
    width = 64
    for stage, planes in enumerate((64, 128, 256, 512)):
        for block in range(2):
            changes = stage > 0 and block == 0
            shortcut = [nn.Conv2d(width, planes, 1, stride=2, bias=False)] if changes else []
            first = nn.Conv2d(width, planes, 3, stride=2 if changes else 1, padding=1, bias=False)
            convolutions += [first, nn.Conv2d(planes, planes, 3, padding=1, bias=False), *shortcut]
            width = planes
    nn.Linear(512, 1000)  # thrown away
    for convolution in convolutions:
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolutions, [nn.Linear(512, 512), nn.Linear(512, 256), nn.Linear(256, classes)]


def test_the_isic_network_has_the_released_initial_weights():
    """At seed 1337, built in the order of the released code, bit for bit."""
    torch.manual_seed(1337)
    convolutions, linears = built_as_released(7)
    torch.manual_seed(1337)
    ours = build("resnet18_cifar", 7)
    made = [m for m in ours.backbone.modules() if isinstance(m, nn.Conv2d)]
    assert [m.weight.shape for m in made] == [m.weight.shape for m in convolutions]
    for mine, theirs in zip(made, convolutions, strict=True):
        assert torch.equal(mine.weight, theirs.weight)
    for mine, theirs in zip((ours.head.hidden, ours.head.projection, ours.head.classifier), linears, strict=True):
        assert torch.equal(mine.weight, theirs.weight) and torch.equal(mine.bias, theirs.bias)
    for norm in (m for m in ours.modules() if isinstance(m, nn.BatchNorm2d)):
        assert bool((norm.weight == 1).all() and (norm.bias == 0).all())


def test_resnet_stem_has_the_scale_of_the_other_convolutions():
    torch.manual_seed(0)
    weight = build("resnet18_cifar", 7).backbone.conv1.weight.detach()
    assert float(weight.std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.06)


def test_missing_imagenet_weights_are_one_clear_error(monkeypatch):
    def no_network(*args, **kwargs):
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", no_network)
    with pytest.raises(DataError, match=r"resnet18-\w+\.pth .*no route to host.*pretrained=false"):
        build("resnet18_cifar", 7, pretrained=True)


def test_imagenet_weights_are_loaded_except_for_stem_and_head(monkeypatch):
    from torchvision.models import resnet18

    torch.manual_seed(11)
    stored = resnet18().state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *a, **k: stored)
    net = ResNet18(7, stem="imagenet", pretrained=True).backbone
    for name, value in net.state_dict().items():
        assert torch.equal(value, stored[name]), name
    cifar = ResNet18(7, stem="cifar", pretrained=True).backbone
    assert cifar.conv1.weight.shape == (64, 3, 3, 3)
    assert torch.equal(cifar.layer4[1].conv2.weight, stored["layer4.1.conv2.weight"])


def test_resnet8_matches_the_released_network():
    """Equal layers in equal order, under names of our own where they differ; the sine has a phase per entry."""
    case = json.loads((GOLDEN / "allclients/resnet8.json").read_text())["cases"][0]
    out = case["outputs"]
    model = build("resnet8", 10).double()
    state = model.state_dict()
    assert [list(v.shape) for v in state.values()] == [shape for _, shape in case["inputs"]["state_dict_order"]]
    floating = {k: v for k, v in state.items() if v.is_floating_point()}
    with torch.no_grad():
        for k, (name, v) in enumerate(floating.items()):
            s = torch.sin(0.1 * torch.arange(1, v.numel() + 1, dtype=torch.float64) + k)
            if name.endswith("running_mean"):
                value = 0.05 * s
            elif name.endswith("running_var"):
                value = 1 + 0.5 * s**2
            elif v.ndim > 1:
                value = s * math.sqrt(2 / v[0].numel())
            else:
                value = 0.1 * s if name.endswith("bias") else 1 + 0.1 * s
            v.copy_(value.view(v.shape))
    x = torch.sin(0.01 * torch.arange(2 * 3 * 32 * 32, dtype=torch.float64)).view(2, 3, 32, 32)

    def check(tensor, name):
        torch.testing.assert_close(tensor, torch.tensor(out[name], dtype=torch.float64), rtol=1e-6, atol=1e-8)

    model.eval()
    check(model.features(x)[:, :8], "feature_eval_first_8")
    check(model(x), "logits_eval")
    model.train()
    logits = model(x)
    check(logits, "logits_train")
    check(model.bn1.running_mean[:4], "bn1_running_mean_after_first_4")
    check(model.bn1.running_var[:4], "bn1_running_var_after_first_4")
    loss = F.cross_entropy(logits, torch.tensor(case["inputs"]["labels"]))
    assert loss.item() == pytest.approx(out["loss_train"], rel=1e-6)
    loss.backward()
    norms = [p.grad.norm().item() for p in model.parameters()]
    assert norms == pytest.approx(list(out["grad_norms"].values()), rel=1e-6)


def test_resnet9_matches_the_released_network():
    data = json.loads((GOLDEN / "feddure/resnet9.json").read_text())
    out = data["outputs"]
    model = build("resnet9", 10).double()
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    assert [list(v.shape) for v in state.values()] == [shape for _, shape in data["inputs"]["state_dict_order"]]
    with torch.no_grad():
        for j, (name, v) in enumerate(state.items()):
            i = torch.arange(v.numel(), dtype=torch.float64)
            if name.endswith("running_mean"):
                value = 0.05 * torch.sin(i + j)
            elif name.endswith("running_var"):
                value = 1 + 0.5 * torch.sin(i + j) ** 2
            elif v.ndim > 1:
                value = torch.sin(0.7 * i + j) * math.sqrt(2 / v[0].numel())
            elif name.endswith("bias"):
                value = 0.1 * torch.cos(i + j)
            else:
                value = 1 + 0.1 * torch.sin(i + j)
            v.copy_(value.view(v.shape))
    x = torch.sin(0.01 * torch.arange(2 * 3 * 32 * 32, dtype=torch.float64)).view(2, 3, 32, 32)

    def check(tensor, name):
        torch.testing.assert_close(tensor, torch.tensor(out[name], dtype=torch.float64), rtol=1e-8, atol=1e-10)

    model.eval()
    assert list(model.features(x).shape) == out["feature_dim"]
    check(model(x), "logits_eval")
    model.train()
    logits = model(x)
    check(logits, "logits_train")
    check(model.prep[1].running_mean[:4], "prep_running_mean_after_one_train_forward")
    loss = F.cross_entropy(logits, torch.tensor([1, 7]))
    assert loss.item() == pytest.approx(out["loss_train_labels_1_7"], rel=1e-9)
    loss.backward()
    check(torch.stack([p.grad.norm() for p in model.parameters()]), "grad_norms_in_parameter_order")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("wrn28", 10), r"unknown model 'wrn28'; did you mean 'wrn28_\d'\? Known: small_cnn"),
        (lambda: build("zzz", 10), r"unknown model 'zzz'\. Known: small_cnn"),
        (lambda: build("no_such_pkg.nets.Net", 10), "No module named 'no_such_pkg'"),
        (lambda: build("methods.models.cnn.Nothing", 10), "has no attribute 'Nothing'"),
        (lambda: build("torch.pi", 10), "this is a float"),
        (lambda: build("torch.float32", 10), "this is a dtype"),
        (lambda: build("os.system", 10, command="exit 1"), "names from the standard library are refused"),
        (lambda: build("torch.nn.functional.relu", 10), "it has no argument num_classes"),
        (lambda: build("pathlib.Path", 10), "standard library"),
        (lambda: build("collections.", 10), "standard library"),
        (lambda: build("methods.models.", 10), "is not a dotted path"),
        (lambda: build("torchvision.models.list_models", 10), "it has no argument num_classes"),
        (lambda: build("small_cnn", 10, widht=3), "unknown option widht; it has num_classes"),
        (lambda: build("small_cnn", 10, image_size=15), "side 15 are too small"),
        (lambda: build("lenet", 10, image_size=15), "lenet: images of side 15 are too small"),
        (lambda: build("lenet", 10, norm="layer"), "norm='layer' is unknown"),
        (lambda: build("lenet", 10, groups=3), "16 channels cannot be divided into 3 groups"),
        (lambda: build("lenet", 10, head_dropout=1.0), r"head_dropout=1.0.*\[0, 1\)"),
        (lambda: build("mlp", 10, image_size=7), "side 7 do not cover 8 cells"),
        (lambda: build("small_cnn", 10, head_dropout=1.0), r"head_dropout=1.0.*\[0, 1\)"),
        (lambda: build("resnet18", 10, head_dropout=1.0), r"head_dropout=1.0.*\[0, 1\)"),
        (lambda: build("resnet18", 10, stem="imagnet"), "stem='imagnet' is unknown.*cifar, imagenet"),
        (lambda: build("wrn28_2", 10, image_size=7), "side 7 are too small"),
        (lambda: build("wrn28_2", 10, image_size=224), r"side 224 need 5 equal stages.*4 \+ 10 n"),
        (
            lambda: build("wrn28_2", 10, norm="layer"),
            "norm='layer' is unknown.*static, batch, running, group",
        ),
        (lambda: normalisation("group", 48, 32), "48 channels cannot be divided into 32 groups"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_every_name_can_be_built():
    others = ("vit_tiny", "linear")  # the first downloads, the second takes no images
    with torch.device("meta"):
        assert all(isinstance(build(name, 3), Backbone) for name in MODELS if name not in others)


def test_linear():
    model, x = build("linear", 3, in_features=8), torch.randn(5, 8)
    assert isinstance(model, Backbone) and model.feature_dim == 8
    assert not model.head.bias.any() and sum(p.numel() for p in model.parameters()) == 27
    torch.testing.assert_close(model(x), x @ model.head.weight.T)
    assert torch.equal(model.features(x), x)


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


def test_pool_is_max_pool_with_and_without_gradients():
    for side in (28, 9):
        x = torch.randn(4, 6, side, side).to(memory_format=torch.channels_last).requires_grad_()
        with torch.no_grad():
            assert torch.equal(pool(x), F.max_pool2d(x, 2))
        assert pool(x).requires_grad


def grouped(x, groups):
    """Maps with mean 0 and variance 1 over each image's groups of channels."""
    parts = x.reshape(len(x), groups, -1)
    var, mean = torch.var_mean(parts, dim=2, keepdim=True, correction=0)
    return ((parts - mean) / (var + 1e-5).sqrt()).reshape(x.shape)


def test_lenet_normalises_pooled_maps_within_an_image():
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


def test_lenet_with_group_norm_keeps_no_statistics():
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


def test_plain_resnet9_is_the_published_chain_of_layers():
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


def test_plain_resnet9_starts_from_a_cut_normal_law_of_variance_one_over_fan_in():
    torch.manual_seed(0)
    for weight in build("resnet9_plain", 10).parameters():
        scaled = weight.detach() * weight[0].numel() ** 0.5
        assert float(scaled.var()) == pytest.approx(1.0, rel=4 / weight.numel() ** 0.5)
        assert float(scaled.abs().max()) < 2 / 0.8796


def test_conv6_drops_channels_and_features_in_training_only():
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
    with pytest.raises(ConfigError, match="dropout"):
        build("conv6", 10, channel_dropout=1.0)
    with pytest.raises(ConfigError, match="side 4"):
        build("conv6", 10, image_size=4)


def test_conv6_is_the_published_chain_of_layers():
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
