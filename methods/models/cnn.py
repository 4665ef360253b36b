"""Two small convolutional networks: RSCFed's for SVHN and CIFAR-100 with its three-layer head, and one with norms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, DropsUnits, LinearHead
from methods.models.norm import Norm, normalisation


class ProjectionHead(DropsUnits):
    """Linear d→d, ReLU, linear d→256 without activation, linear 256→classes (RSCFed, released code).

    With ``dropout`` > 0, units are dropped after the ReLU in training mode (for FedIRM). The parameters and their names
    do not depend on it.

    Raises:
        ConfigError: ``dropout`` outside [0, 1).
    """

    def __init__(self, feature_dim: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.set_dropout(dropout)
        self.hidden = nn.Linear(feature_dim, feature_dim)
        self.projection = nn.Linear(feature_dim, 256)
        self.classifier = nn.Linear(256, num_classes)

    def forward(self, features: Tensor, passes: int = 1) -> Tensor:
        """Map features [B, d] to logits [B, classes], averaged over ``passes`` dropout masks."""
        h = self.drop(F.relu(self.hidden(features)), passes)
        return self.classifier(self.projection(h))


def pool(x: Tensor) -> Tensor:
    """Max-pool 2×2 windows like ``F.max_pool2d(x, 2)``: [B, channels, side, side] to half the side, rounded down.

    Without gradients, maxima of shifted maps are ten times as fast for few channels in NHWC on a CPU.
    """
    if torch.is_grad_enabled():
        return F.max_pool2d(x, 2)
    x = x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2]
    x = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
    return torch.maximum(x[..., ::2], x[..., 1::2])


def conv_pool(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Compute ``F.max_pool2d(conv(x), 2)``, on a CPU as one stride-2 convolution with a window's corners as channels.

    A few channels leave most of a vector register empty; four times as many fill it, also in the pooling, which sees
    the four corners as rows. ``conv`` must have neither padding nor stride.
    """
    if not x.is_cpu:
        return pool(conv(x))
    corners = [F.pad(conv.weight, (right, 1 - right, down, 1 - down)) for down in (0, 1) for right in (0, 1)]
    bias = None if conv.bias is None else conv.bias.repeat(4)
    maps = F.conv2d(x.contiguous(), torch.cat(corners).contiguous(), bias, stride=2)
    rows = maps.reshape(len(maps), 4, 1, -1).permute(0, 3, 1, 2)
    return F.max_pool2d(rows, (4, 1)).reshape(len(maps), -1, *maps.shape[2:])


def side_of_maps(image_size: int, name: str) -> int:
    """Side of the maps after two unpadded 5×5 convolutions with pooling.

    Raises:
        ConfigError: the images are too small for them.
    """
    side = ((image_size - 4) // 2 - 4) // 2
    if side < 1:
        raise ConfigError(f"{name}: images of side {image_size} are too small; resize to 16 or more")
    return side


class SmallCNN(Backbone):
    """Two 5×5 convolutions and two linear layers, then a ``ProjectionHead``; no normalisation.

    92 626 parameters for 10 classes, 115 756 for 100, in 14 tensors, no buffers (RSCFed, released code). Layers are
    built in forward order with torch's default initialisation: after ``torch.manual_seed(1337)`` the weights equal the
    authors' bit for bit.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        image_size: side of the square input images, at least 16 pixels; the papers use 32.
        head_dropout: dropout probability in the head; 0: none.

    Raises:
        ConfigError: images too small for two unpadded convolutions with pooling, or ``head_dropout`` outside
            [0, 1).
    """

    feature_dim = 84

    def __init__(self, num_classes: int, in_channels: int = 3, image_size: int = 32, head_dropout: float = 0.0) -> None:
        super().__init__()
        side = side_of_maps(image_size, "small_cnn")
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, self.feature_dim)
        self.head = ProjectionHead(self.feature_dim, num_classes, head_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, 84]."""
        x = F.relu(conv_pool(self.conv1, x))
        x = F.relu(pool(self.conv2(x)))
        return F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))


class LeNet(Backbone):
    """Two 5×5 convolutions of 16 and 32 channels, each with max-pooling, norm and ReLU; 84 units; a linear classifier.

    The structure of LeNet-5 (LeCun et al., 1998) with more channels, one hidden layer and norms. Pooling before the
    norms saves three quarters of their work. Layers have torch's default initialisation. 57 286 parameters for 10
    classes and one channel of 28 pixels.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        image_size: side of the square input images, at least 16 pixels.
        norm: kind of normalisation, see ``methods.models.norm``; ``group`` keeps no statistics.
        groups: groups per layer if norm is ``group``.
        head_dropout: dropout probability of the features before the classifier, 0 for none.

    Raises:
        ConfigError: images too small for two unpadded convolutions with pooling, an unknown norm, groups that do not
            divide 16 or 32 channels, or ``head_dropout`` outside [0, 1).
    """

    feature_dim = 84

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        norm: Norm = "group",
        groups: int = 4,
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        side = side_of_maps(image_size, "lenet")
        self.conv1 = nn.Conv2d(in_channels, 16, 5)
        self.norm1 = normalisation(norm, 16, groups)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.norm2 = normalisation(norm, 32, groups)
        self.hidden = nn.Linear(32 * side * side, self.feature_dim)
        self.head = LinearHead(self.feature_dim, num_classes, head_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to non-negative features [B, 84]."""
        x = F.relu(self.norm1(pool(self.conv1(x))))
        x = F.relu(self.norm2(pool(self.conv2(x))))
        return F.relu(self.hidden(x.flatten(1)))
