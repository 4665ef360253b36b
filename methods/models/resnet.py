"""ResNet-18 and ResNet-8 of torchvision's blocks."""

from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import ResNet, resnet18
from torchvision.models.resnet import BasicBlock

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, LinearHead, draw_convolutions
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

    Raises:
        ConfigError: unknown stem or head, or ``head_dropout`` outside [0, 1).
    """

    feature_dim = 512

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        stem: Stem = "cifar",
        head: Head = "projection",
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for option, value, choices in (("stem", stem, get_args(Stem)), ("head", head, get_args(Head))):
            if value not in choices:
                raise ConfigError(f"ResNet-18: {option}={value!r} is unknown; choose one of {', '.join(choices)}")
        self.backbone: ResNet = _small_image_resnet18(in_channels) if stem == "cifar" else resnet18()
        if stem == "imagenet" and in_channels != 3:
            self.backbone.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
            draw_convolutions(self.backbone.conv1)
        self.backbone.fc = nn.Identity()  # drawn first, since it advances the generator before the head
        kind: type[LinearHead | ProjectionHead] = LinearHead if head == "linear" else ProjectionHead
        self.head = kind(self.feature_dim, num_classes, head_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, 512]."""
        return self.backbone(x)


def _small_image_resnet18(in_channels: int) -> ResNet:
    """torchvision's ResNet-18 with a CIFAR stem, initialised without drawing a 7×7 stem first.

    RSCFed's released code draws stem, batch norm, stages, an unused linear layer 512→1000, then the normal
    initialisation of all convolutions. The unused layer is ``fc``; its draws determine the head's bits.
    """
    with torch.device("meta"):
        net = resnet18()
        net.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    net.to_empty(device=torch.get_default_device())
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    draw_convolutions(net)
    return net


class ResNet8(Backbone):
    """A CIFAR ResNet with one block per stage: a 3×3 stem, stages of 16w, 32w and 64w channels, mean, linear.

    Source: released code of SAGE and ProxyFL, with w = 4. Blocks add the shortcut before their last ReLU; the second
    and third start with stride 2 and have a 1×1 convolution and batch norm in their shortcut. Convolutions have no bias
    and are initialised from a normal distribution with variance 2/fan_out. 1 227 594 parameters for 10 classes,
    1 250 724 for 100; with w = 1, 78 042 for 10.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        width: channel multiplier w.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 4) -> None:
        super().__init__()
        channels = 16 * width
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = BasicBlock(channels, channels)
        self.layer2 = BasicBlock(channels, 2 * channels, 2, _shortcut(channels))
        self.layer3 = BasicBlock(2 * channels, 4 * channels, 2, _shortcut(2 * channels))
        self.feature_dim = 4 * channels
        self.head = LinearHead(self.feature_dim, num_classes)
        draw_convolutions(self)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, 64w]."""
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.layer3(self.layer2(x))).mean((2, 3))


def _shortcut(channels: int) -> nn.Sequential:
    """Shortcut from ``channels`` to twice as many, with stride 2."""
    return nn.Sequential(nn.Conv2d(channels, 2 * channels, 1, 2, bias=False), nn.BatchNorm2d(2 * channels))
