"""The ResNet-8 of SAGE and ProxyFL."""

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from methods.models.backbone import Backbone, LinearHead


class ResNet8(Backbone):
    """A CIFAR ResNet with one block per stage: a 3×3 stem, stages of 16w, 32w and 64w channels, mean, linear.

    Source: released code of both, with w = 4. Blocks add the shortcut before their last ReLU; the second and third
    start with stride 2 and have a 1×1 convolution and batch norm in their shortcut. Convolutions have no bias and are
    initialised from a normal distribution with variance 2/fan_out. 1 227 594 parameters for 10 classes, 1 250 724 for
    100; with w = 1, 78 042 for 10.

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
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, 64w]."""
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.layer3(self.layer2(x))).mean((2, 3))


def _shortcut(channels: int) -> nn.Sequential:
    """Shortcut from ``channels`` to twice as many, with stride 2."""
    return nn.Sequential(nn.Conv2d(channels, 2 * channels, 1, 2, bias=False), nn.BatchNorm2d(2 * channels))
