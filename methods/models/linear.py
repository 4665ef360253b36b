"""A linear classifier of feature vectors."""

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
