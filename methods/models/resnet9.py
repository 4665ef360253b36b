"""The ResNet-9 of FedDure, and that of FedMatch without norms and biases (released code of both)."""

from functools import partial
from math import sqrt

import torch.nn.functional as F
from torch import Tensor, nn

from methods.models.backbone import Backbone, LinearHead

WITHIN_TWO_SIGMA = 0.87962566103423978
"""Standard deviation of a standard normal truncated at two."""


class Block(nn.Sequential):
    """3×3 convolution, batch normalisation (none and no bias if ``plain``), ReLU, and optionally a max-pool of 2."""

    def __init__(self, c_in: int, c_out: int, pool: bool = False, plain: bool = False) -> None:
        norm = [] if plain else [nn.BatchNorm2d(c_out)]
        last = [nn.MaxPool2d(2)] if pool else []
        super().__init__(nn.Conv2d(c_in, c_out, 3, padding=1, bias=not plain), *norm, nn.ReLU(), *last)


class ResNet9(Backbone):
    """Eight convolutions with biases, two residual pairs without activation after the sum, max-pool, linear.

    6 575 370 parameters for 10 classes and 3 channels, torch's default initialisation. The last pool covers the whole
    map: 4×4 for the paper's 32 pixels. Images need at least 8 pixels.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        width: channels of the first block; there are 8 times as many features.
    """

    plain = False

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        block = partial(Block, plain=self.plain)
        a, b, c, d = width, 2 * width, 4 * width, 8 * width
        self.feature_dim = d
        self.prep = block(in_channels, a)
        self.down1 = block(a, b, pool=True)
        self.residual1 = nn.Sequential(block(b, b), block(b, b))
        self.down2 = block(b, c, pool=True)
        self.down3 = block(c, d, pool=True)
        self.residual2 = nn.Sequential(block(d, d), block(d, d))
        self.head = LinearHead(d, num_classes, bias=not self.plain)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to features [B, 8 width]."""
        x = self.down1(self.prep(x))
        x = x + self.residual1(x)
        x = self.down3(self.down2(x))
        x = x + self.residual2(x)
        return F.max_pool2d(x, x.shape[-2:]).flatten(1)


class PlainResNet9(ResNet9):
    """``ResNet9`` without normalisation and biases, the network of FedMatch (ICLR 2021, released code).

    Its state is 9 weight tensors, 6 568 640 values for 10 classes and 3 channels. Weights are drawn from a normal
    distribution truncated at two standard deviations, with variance 1 / fan_in after truncation. The ReLU comes before
    the pooling.
    """

    plain = True

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 64) -> None:
        super().__init__(num_classes, in_channels, width)
        for weight in self.parameters():
            std = sqrt(1.0 / weight[0].numel()) / WITHIN_TWO_SIGMA
            nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)
