"""The ResNet-9 of FedDure (released code)."""

import torch.nn.functional as F
from torch import Tensor, nn

from methods.models.backbone import Backbone, LinearHead


class Block(nn.Sequential):
    """3×3 convolution with bias, batch normalisation, ReLU, and optionally a max-pool of 2."""

    def __init__(self, c_in: int, c_out: int, pool: bool = False) -> None:
        layers: list[nn.Module] = [nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU()]
        super().__init__(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResNet9(Backbone):
    """Eight convolutions with biases, two residual pairs without activation after the sum, max-pool, linear.

    6 575 370 parameters for 10 classes and 3 channels, torch's default initialisation. The last pool covers the whole
    map: 4×4 for the paper's 32 pixels. Images need at least 8 pixels.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        width: channels of the first block; there are 8 times as many features.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        a, b, c, self.feature_dim = width, 2 * width, 4 * width, 8 * width
        self.prep = Block(in_channels, a)
        self.down1 = Block(a, b, pool=True)
        self.residual1 = nn.Sequential(Block(b, b), Block(b, b))
        self.down2 = Block(b, c, pool=True)
        self.down3 = Block(c, 8 * a, pool=True)
        self.residual2 = nn.Sequential(Block(8 * a, 8 * a), Block(8 * a, 8 * a))
        self.head = LinearHead(self.feature_dim, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to features [B, 8 width]."""
        x = self.down1(self.prep(x))
        x = x + self.residual1(x)
        x = self.down3(self.down2(x))
        x = x + self.residual2(x)
        return F.max_pool2d(x, x.shape[-2:]).flatten(1)
