"""ResNets against the released networks: stems, initial weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from golden_files import load
from methods.models import build

# --- ResNet-18


def test_the_stem_for_small_images_keeps_the_resolution():
    net, x = build("resnet18_cifar", 3).eval().backbone, torch.rand(1, 3, 32, 32)
    maps = net.layer4(net.layer3(net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x))))))))
    assert maps.shape == (1, 512, 4, 4)
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


# --- ResNet-8 and ResNet-9


def fill(state, sines):
    """Numbers of the reference networks: of kernels, of scales and statistics, and of biases."""
    with torch.no_grad():
        for k, (name, v) in enumerate((n, v) for n, v in state.items() if v.is_floating_point()):
            kernel, scale, bias = sines(torch.arange(v.numel(), dtype=torch.float64), k)
            if name.endswith("running_mean"):
                value = 0.05 * scale
            elif name.endswith("running_var"):
                value = 1 + 0.5 * scale**2
            elif v.ndim > 1:
                value = kernel * math.sqrt(2 / v[0].numel())
            else:
                value = 0.1 * bias if name.endswith("bias") else 1 + 0.1 * scale
            v.copy_(value.view(v.shape))


def test_resnet8_matches_the_released_network():
    """Equal layers in equal order, under names of our own where they differ; the sine has a phase per entry."""
    case = load("allclients/resnet8")["cases"][0]
    out = case["outputs"]
    model = build("resnet8", 10).double()
    state = model.state_dict()
    assert [list(v.shape) for v in state.values()] == [shape for _, shape in case["inputs"]["state_dict_order"]]
    fill(state, lambda i, k: (torch.sin(0.1 * (i + 1) + k),) * 3)
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
    data = load("feddure/resnet9")
    out = data["outputs"]
    model = build("resnet9", 10).double()
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    assert [list(v.shape) for v in state.values()] == [shape for _, shape in data["inputs"]["state_dict_order"]]
    fill(state, lambda i, k: (torch.sin(0.7 * i + k), torch.sin(i + k), torch.cos(i + k)))
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


# --- ResNet-9 without norms


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
    for weight in build("resnet9_plain", 10, width=16).parameters():
        scaled = weight.detach() * weight[0].numel() ** 0.5
        assert float(scaled.var()) == pytest.approx(1.0, rel=4 / weight.numel() ** 0.5)
        assert float(scaled.abs().max()) < 2 / 0.8796
