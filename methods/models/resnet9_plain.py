"""A ResNet-9 of convolutions only: no normalisation, no biases."""

from math import sqrt

import torch.nn.functional as F
from torch import Tensor, nn

from methods.models.backbone import Backbone, LinearHead

WITHIN_TWO_SIGMA = 0.87962566103423978
"""Standard deviation of a standard normal truncated at two."""


class PlainResNet9(Backbone):
    """Eight 3×3 convolutions with ReLUs, two residual pairs without activation after the sum, max-pool, linear.

    The network of FedMatch (ICLR 2021, released code): without biases and normalisation layers, its state is 9 weight
    tensors, 6 568 640 values for 10 classes and 3 channels. Weights are drawn from a normal distribution truncated at
    two standard deviations, with variance 1 / fan_in after truncation. The ReLU comes before the pooling. The last pool
    covers the whole map: 4×4 for the paper's 32 pixels. Images need at least 8 pixels.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        width: channels of the first convolution; there are 8 times as many features.
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
        """Map images [B, channels, side, side] to features [B, 8 width]."""
        x = F.relu(self.prep(x))
        x = F.max_pool2d(F.relu(self.down1(x)), 2)
        x = x + pair(self.residual1, x)
        x = F.max_pool2d(F.relu(self.down2(x)), 2)
        x = F.max_pool2d(F.relu(self.down3(x)), 2)
        x = x + pair(self.residual2, x)
        return F.max_pool2d(x, x.shape[-2:]).flatten(1)


def conv(c_in: int, c_out: int) -> nn.Conv2d:
    """Return a 3×3 convolution without bias that keeps the map's size."""
    return nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)


def pair(convs: nn.ModuleList, x: Tensor) -> Tensor:
    """Apply the convolutions one after the other, each with a ReLU."""
    for layer in convs:
        x = F.relu(layer(x))
    return x
