"""What every network of the suite offers: features, a head on them, and their composition."""

from torch import Tensor, nn


class Backbone(nn.Module):
    """A classifier in two parts, so that a method can look at features or run the head several times.

    A subclass sets ``feature_dim`` and ``head``, and defines ``features``.
    """

    feature_dim: int
    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """Images [B, channels, side, side] to features [B, feature_dim]."""
        raise TypeError(f"{type(self).__name__} must define features(x)")

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, channels, side, side] to logits [B, classes]."""
        logits: Tensor = self.head(self.features(x))
        return logits
