"""Six convolutions, three with batch normalisation, and a head of three linear layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, DropsUnits


class ChannelDropout(DropsUnits):
    """Drop whole channels of maps with probability ``dropout`` in training mode.

    Raises:
        ConfigError: ``dropout`` outside [0, 1).
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.set_dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels of maps [B, channels, H, W] and rescale the others to keep the mean."""
        return x * self.drop(x.new_ones(x.shape[:2]), 1)[:, :, None, None]


class HiddenHead(DropsUnits):
    """Dropout of features, linear d→hidden, ReLU, linear to half of that, ReLU, linear to the classes.

    Raises:
        ConfigError: ``dropout`` outside [0, 1).
    """

    def __init__(self, feature_dim: int, num_classes: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.set_dropout(dropout)
        self.hidden1 = nn.Linear(feature_dim, hidden)
        self.hidden2 = nn.Linear(hidden, hidden // 2)
        self.classifier = nn.Linear(hidden // 2, num_classes)

    def forward(self, features: Tensor, passes: int = 1) -> Tensor:
        """Map features [B, d] to logits [B, classes], averaged over ``passes`` dropout masks."""
        made = [self.hidden1(self.drop(features, 1)) for _ in range(passes)]
        logits: Tensor = self.classifier(F.relu(self.hidden2(F.relu(torch.cat(made)))))
        return logits.view(passes, len(features), -1).mean(dim=0)


class Conv6(Backbone):
    """Three blocks of two 3×3 convolutions and a max-pool, then linear layers of 1024 and 512 units.

    The network of FedCon's public PyTorch code for CIFAR and SVHN: [conv 32, BN, ReLU, conv 64, ReLU, pool], [conv 128,
    BN, ReLU, conv 128, ReLU, pool, channel dropout], [conv 256, BN, ReLU, conv 256, ReLU, pool], and a head that drops
    features before its first layer. Batch norm keeps the usual running statistics. 5 852 170 parameters for 10 classes
    and 3 channels of 32 pixels, torch's default initialisation; the features are the 4096 values of the last map.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        image_size: side of the square input images, at least 8 pixels.
        width: channels of the first convolution.
        channel_dropout: dropout probability of channels after the second block.
        head_dropout: dropout probability of features before the head.

    Raises:
        ConfigError: images too small for three poolings, or a dropout probability outside [0, 1).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        width: int = 32,
        channel_dropout: float = 0.05,
        head_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        side = image_size // 8
        if side < 1:
            raise ConfigError(f"conv6: images of side {image_size} are too small; resize them to 8 or more")
        a, b, c, d = width, 2 * width, 4 * width, 8 * width
        self.block1 = block(in_channels, a, b)
        self.block2 = block(b, c, c)
        self.drop = ChannelDropout(channel_dropout)
        self.block3 = block(c, d, d)
        self.feature_dim = d * side * side
        self.head = HiddenHead(self.feature_dim, num_classes, 32 * width, head_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, feature_dim]."""
        x = F.max_pool2d(self.block1(x), 2)
        x = self.drop(F.max_pool2d(self.block2(x), 2))
        return F.max_pool2d(self.block3(x), 2).flatten(1)


def block(c_in: int, c_mid: int, c_out: int) -> nn.Sequential:
    """Convolution, batch norm, ReLU, convolution, ReLU; the map keeps its size."""
    return nn.Sequential(
        nn.Conv2d(c_in, c_mid, 3, padding=1),
        nn.BatchNorm2d(c_mid),
        nn.ReLU(),
        nn.Conv2d(c_mid, c_out, 3, padding=1),
        nn.ReLU(),
    )
