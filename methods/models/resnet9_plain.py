"""A ResNet-9 of convolutions alone: no normalisation, no biases."""

from math import sqrt

import torch.nn.functional as F
from torch import Tensor, nn

from methods.models.backbone import Backbone, LinearHead

WITHIN_TWO_SIGMA = 0.87962566103423978
"""Standard deviation of a standard normal variable that is cut off beyond two."""


class PlainResNet9(Backbone):
    """Eight 3×3 convolutions with ReLUs, two residual pairs without activation after the sum, max-pool, linear.

    The network of FedMatch (ICLR 2021, released code): there are neither biases nor normalisation layers, so that its
    state is its 9 weight tensors, 6 568 640 numbers for 10 classes and 3 channels. Every weight is drawn from a normal
    law cut off at two standard deviations, with variance 1 / fan_in after the cut. The ReLU comes before the pooling.
    The last pool takes the whole map: 4×4 at the 32 pixels of the paper. Images need 8 pixels or more.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        width: channels of the first convolution; the features have 8 times as many.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        a, b, c, self.feature_dim = width, 2 * width, 4 * width, 8 * width
        d = self.feature_dim
        self.prep = conv(in_channels, a)
        self.down1 = conv(a, b)
        self.residual1 = nn.ModuleList([conv(b, b), conv(b, b)])
        self.down2 = conv(b, c)
        self.down3 = conv(c, d)
        self.residual2 = nn.ModuleList([conv(d, d), conv(d, d)])
        self.head = LinearHead(d, num_classes, bias=False)
        for weight in self.parameters():
            std = sqrt(1.0 / weight[0].numel()) / WITHIN_TWO_SIGMA
            nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)

    def features(self, x: Tensor) -> Tensor:
        """Images [B, channels, side, side] to features [B, 8 width]."""
        x = F.relu(self.prep(x))
        x = F.max_pool2d(F.relu(self.down1(x)), 2)
        x = x + pair(self.residual1, x)
        x = F.max_pool2d(F.relu(self.down2(x)), 2)
        x = F.max_pool2d(F.relu(self.down3(x)), 2)
        x = x + pair(self.residual2, x)
        return F.max_pool2d(x, x.shape[-2:]).flatten(1)


def conv(c_in: int, c_out: int) -> nn.Conv2d:
    """A 3×3 convolution that keeps the size of the map, without bias."""
    return nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)


def pair(convs: nn.ModuleList, x: Tensor) -> Tensor:
    """The convolutions one after the other, each with a ReLU."""
    for layer in convs:
        x = F.relu(layer(x))
    return x
