"""A linear classifier of feature vectors."""

from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.models.backbone import Backbone, LinearHead


class Linear(Backbone):
    """What is trained on a frozen encoder ((FL)2, AG News): ``W x + b``; the bias starts at 0.

    Args:
        num_classes: number of logits.
        in_features: length of the feature vectors.

    Raises:
        ConfigError: the data does not give feature vectors.
    """

    def __init__(self, num_classes: int, in_features: int | None = None) -> None:
        super().__init__()
        if in_features is None:
            raise ConfigError("linear: the data gives images, not feature vectors; choose a network for images")
        self.feature_dim = in_features
        self.head = LinearHead(in_features, num_classes)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """Feature vectors [B, in_features], as they are."""
        return x
