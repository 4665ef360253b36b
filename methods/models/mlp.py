"""A linear classifier, and a multilayer perceptron that trains in milliseconds per step."""

import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, LinearHead


class Linear(Backbone):
    """A linear probe ``W x + b`` on a frozen encoder ((FL)2, AG News); the bias starts at 0.

    Args:
        num_classes: number of logits.
        in_features: length of the feature vectors.

    Raises:
        ConfigError: the data are not feature vectors.
    """

    def __init__(self, num_classes: int, in_features: int | None = None) -> None:
        super().__init__()
        if in_features is None:
            raise ConfigError("linear: the data has images, not feature vectors; choose a network for images")
        self.feature_dim = in_features
        self.head = LinearHead(in_features, num_classes)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return feature vectors [B, in_features] unchanged."""
        return x


class MLP(Backbone):
    """Means over a grid of ``cells`` × ``cells`` squares, a hidden layer with ReLU, and a linear head.

    It stands in for the papers' networks at scale ``quick``, on 8 × 8 digits. Feature vectors skip the averaging. There
    is no normalisation.

    Args:
        num_classes: number of logits.
        in_channels: channels of the input images.
        image_size: side of the square input images in pixels, at least ``cells``.
        hidden: units of the hidden layer, the features.
        cells: squares along a side.
        head_dropout: dropout probability before the head, 0 for none.
        in_features: length of the feature vectors, if these are the input.

    Raises:
        ConfigError: images smaller than the grid, or ``head_dropout`` outside [0, 1).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        hidden: int = 64,
        cells: int = 8,
        head_dropout: float = 0.0,
        in_features: int | None = None,
    ) -> None:
        super().__init__()
        if in_features is None and image_size < cells:
            raise ConfigError(f"mlp: images of side {image_size} do not cover {cells} cells; take fewer cells")
        self.cells = cells
        self.feature_dim = hidden
        self.hidden = nn.Linear(in_features or in_channels * cells * cells, hidden)
        self.head = LinearHead(hidden, num_classes, head_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] or vectors [B, in_features] to non-negative features [B, hidden]."""
        return F.relu(self.hidden(self._cell_means(x) if x.ndim == 4 else x))

    def _cell_means(self, images: Tensor) -> Tensor:
        """Mean of every cell, [B, channels * cells * cells]."""
        width, rest = divmod(images.shape[-1], self.cells)
        if rest:
            return F.adaptive_avg_pool2d(images, self.cells).flatten(1)
        return F.avg_pool2d(images, width).flatten(1)  # the same numbers, in half the time
