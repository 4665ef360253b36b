"""Wide residual networks with pre-activation blocks, as released with SemiFL, (FL)² and FedDB."""

import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, LinearHead, draw_convolutions
from methods.models.norm import Norm, normalisation


class Block(nn.Module):
    """Norm, ReLU, 3×3 convolution, norm, ReLU, 3×3 convolution, plus a shortcut.

    The shortcut is the raw input, or where the number of channels changes a strided 1×1 convolution of the activation
    that also feeds the branch.
    """

    def __init__(self, c_in: int, c_out: int, stride: int, norm: Norm, groups: int) -> None:
        super().__init__()
        self.bn1 = normalisation(norm, c_in, groups)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn2 = normalisation(norm, c_out, groups)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if c_in != c_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, c_in, H, W] to [B, c_out, H/stride, W/stride]."""
        h = F.relu(self.bn1(x))
        identity = x if self.shortcut is None else self.shortcut(h)
        return self.conv2(F.relu(self.bn2(self.conv1(h)))) + identity


class WideResNet(Backbone):
    """WRN-depth-width: a 3×3 stem of 16 channels, stages of 16w, 32w, 64w channels, norm, ReLU, mean, linear.

    The number of stages follows from the image side, floor(log2(side)) − 2: three for 32 pixels, but two for 28 ((FL)²,
    released code). Convolutions have no bias and are initialised from a normal distribution with variance 2/fan_out;
    the classifier has torch's default weights and bias 0. WRN-28-2 for 10 classes has 1 467 610 parameters, WRN-28-8
    for 100 classes 23 401 012, in 80 tensors.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        image_size: side of the square input images in pixels.
        depth: number of layers, 4 + 2 × blocks.
        width: channel multiplier w of the stages.
        norm: kind of normalisation, see ``methods.models.norm``.
        groups: maximum number of groups per layer if norm is ``group``.
        head_dropout: dropout probability of the features before the classifier, 0 for none.

    Raises:
        ConfigError: images smaller than 8 pixels, a depth that does not give equal stages, an unknown norm, groups that
            do not divide a layer's channels, or ``head_dropout`` outside [0, 1).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        depth: int = 28,
        width: int = 2,
        norm: Norm = "static",
        groups: int = 32,
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        stages = image_size.bit_length() - 3
        if stages < 1:
            raise ConfigError(f"wide ResNet: images of side {image_size} are too small; resize them to 8 or more")
        blocks, rest = divmod(depth - 4, 2 * stages)
        if blocks < 1 or rest:
            raise ConfigError(
                f"wide ResNet: images of side {image_size} need {stages} equal stages, which depth {depth} does not "
                f"give; resize the images (the papers use 32) or choose a depth of 4 + {2 * stages} n"
            )
        self.conv = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential()
        channels = 16
        for stage in range(stages):
            for block in range(blocks):
                out, stride = 16 * width * 2**stage, 2 if stage and not block else 1
                self.blocks.append(Block(channels, out, stride, norm, groups))
                channels = out
        self.bn = normalisation(norm, channels, groups)
        self.feature_dim = channels
        self.head = LinearHead(channels, num_classes, head_dropout)

        draw_convolutions(self)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, feature_dim]."""
        return F.relu(self.bn(self.blocks(self.conv(x)))).mean((2, 3))
