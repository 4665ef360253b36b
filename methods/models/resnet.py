"""ResNet-18 with a CIFAR or an ImageNet stem: torchvision's, with a different first and last layer."""

from typing import Literal, get_args
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision.models import ResNet, ResNet18_Weights, resnet18
from torchvision.models.resnet import BasicBlock

from datamodules.common.errors import ConfigError, DataError
from methods.models.backbone import Backbone, LinearHead
from methods.models.cnn import ProjectionHead

Stem = Literal["cifar", "imagenet"]
Head = Literal["projection", "linear"]


class ResNet18(Backbone):
    """ResNet-18 in the papers' two forms.

    RSCFed's ISIC network (released code): a 3×3 stem of stride 1 without max-pool, and a ``ProjectionHead``; 11 564 615
    parameters for 7 classes. Initial values are drawn in the authors' order, so that after ``torch.manual_seed(1337)``
    the weights equal the authors' bit for bit. CBAFed's network for all data sets (released code): torchvision's, with
    a linear head; 11 181 642 parameters for 10 classes. Convolutions are initialised from a normal distribution with
    variance 2/fan_out.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        stem: ``cifar`` keeps the resolution, ``imagenet`` divides it by four (7×7 of stride 2, then
            max-pool).
        head: ``projection`` or ``linear``.
        head_dropout: dropout probability in the head; 0: none.
        pretrained: start from torchvision's ImageNet weights, except for the head and a stem of a different shape.

    Raises:
        ConfigError: unknown stem or head, or ``head_dropout`` outside [0, 1).
        DataError: the ImageNet weights are not in torch's cache and cannot be downloaded.
    """

    feature_dim = 512

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        stem: Stem = "cifar",
        head: Head = "projection",
        head_dropout: float = 0.0,
        pretrained: bool = False,
    ) -> None:
        super().__init__()
        for option, value, known in (("stem", stem, get_args(Stem)), ("head", head, get_args(Head))):
            if value not in known:
                raise ConfigError(f"ResNet-18: {option}={value!r} is unknown; choose one of {', '.join(known)}")
        if stem == "cifar" and not pretrained:
            self.backbone: ResNet = _SmallImageResNet18(in_channels)
        else:
            self.backbone = _imagenet_resnet18() if pretrained else resnet18()
            if stem == "cifar":
                self.backbone.conv1 = _first_convolution(in_channels, 3, 1)
                self.backbone.maxpool = nn.Identity()
            elif in_channels != 3:
                self.backbone.conv1 = _first_convolution(in_channels, 7, 2)
        self.backbone.fc = nn.Identity()  # drawn first, since it advances the generator before the head
        self.head = (
            LinearHead(self.feature_dim, num_classes, head_dropout)
            if head == "linear"
            else ProjectionHead(self.feature_dim, num_classes, head_dropout)
        )

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, 512]."""
        features: Tensor = self.backbone(x)
        return features


class _SmallImageResNet18(ResNet):  # type: ignore[misc,unused-ignore]  # torchvision is untyped
    """torchvision's ResNet-18 with a CIFAR stem built directly, without drawing a 7×7 stem first.

    RSCFed's released code draws stem, batch norm, stages, an unused linear layer 512→1000, then the normal
    initialisation of all convolutions. The unused layer stays here as ``fc``, since its draws determine the head's
    bits.
    """

    def __init__(self, in_channels: int) -> None:
        nn.Module.__init__(self)  # not ResNet's, which would draw the 7×7 stem
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups, self.base_width = 64, 1, 1, 64
        self.conv1 = nn.Conv2d(in_channels, 64, 3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity()
        self.layer1 = self._make_layer(BasicBlock, 64, 2)
        self.layer2 = self._make_layer(BasicBlock, 128, 2, stride=2)
        self.layer3 = self._make_layer(BasicBlock, 256, 2, stride=2)
        self.layer4 = self._make_layer(BasicBlock, 512, 2, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _first_convolution(in_channels: int, kernel: int, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, 64, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _imagenet_resnet18() -> ResNet:
    weights = ResNet18_Weights.IMAGENET1K_V1
    try:
        return resnet18(weights=weights)
    except (URLError, OSError) as error:
        name = weights.url.rsplit("/", 1)[-1]
        raise DataError(
            f"ImageNet weights of ResNet-18: {torch.hub.get_dir()}/checkpoints/{name} cannot be read and the "
            f"download failed ({error}); copy the file there from another machine, or set pretrained=false"
        ) from error
