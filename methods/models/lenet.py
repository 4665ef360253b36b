"""A small network with normalisation, for grey images on a CPU."""

import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, LinearHead
from methods.models.cnn import pool
from methods.models.norm import Norm, normalisation


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
        side = ((image_size - 4) // 2 - 4) // 2
        if side < 1:
            raise ConfigError(f"lenet: images of side {image_size} are too small; resize to 16 or more")
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
