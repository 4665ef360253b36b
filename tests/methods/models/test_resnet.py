"""ResNet-18: both stems, released initial weights, pretrained weights."""

from urllib.error import URLError

import pytest
import torch
from torch import nn

from datamodules.common.errors import DataError
from methods.models import build
from methods.models.resnet import ResNet18


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
