"""Base of all networks: features, a head on them, and their composition."""

import torch
from torch import Tensor, nn

from datamodules.common.errors import ConfigError


class Backbone(nn.Module):
    """A classifier in two parts, so that a method can use features or run the head several times.

    A subclass sets ``feature_dim`` and ``head``, and defines ``features``. Methods with Monte-Carlo dropout call
    ``head(features, passes=T)`` for mean logits over T dropout masks; the heads here support it.
    """

    feature_dim: int
    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to features [B, feature_dim]."""
        raise TypeError(f"{type(self).__name__} must define features(x)")

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, channels, side, side] to logits [B, classes]."""
        return self.head(self.features(x))


class DropsUnits(nn.Module):
    """Mixin of heads: drops units in training mode, with masks from the generator set by ``draw_from``."""

    generator: torch.Generator | None = None

    def set_dropout(self, dropout: float) -> None:
        """Set the dropout probability.

        Raises:
            ConfigError: it is outside [0, 1).
        """
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(f"head_dropout={dropout}: a dropout probability must be in [0, 1); 0 switches it off")
        self.dropout = dropout

    def drop(self, h: Tensor, passes: int) -> Tensor:
        """Return h [B, d], in training mode its mean over ``passes`` dropout masks.

        For a head that is linear after its dropout, the mean over Monte-Carlo passes equals one pass of this mean.
        Masks are drawn on the device of h, without a ``generator`` from torch's global one.
        """
        if not (self.training and self.dropout):
            return h
        drawn = torch.rand(passes, *h.shape, generator=self.generator, device=h.device)
        return h * (drawn >= self.dropout).sum(dim=0) / (passes * (1.0 - self.dropout))


def draw_from(module: nn.Module, generator: torch.Generator | None) -> None:
    """Make all heads in a module draw dropout masks from ``generator``; ``None``: torch's global generator."""
    for part in module.modules():
        if isinstance(part, DropsUnits):
            part.generator = generator


def draw_convolutions(module: nn.Module) -> None:
    """Draw the weights of all convolutions in a module from a normal distribution with variance 2/fan_out."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class LinearHead(DropsUnits, nn.Linear):
    """A linear classifier that drops features with probability ``dropout`` in training mode (for FedIRM).

    The parameters and their names do not depend on ``dropout``.

    Raises:
        ConfigError: ``dropout`` outside [0, 1).
    """

    def __init__(self, feature_dim: int, num_classes: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__(feature_dim, num_classes, bias=bias)
        self.set_dropout(dropout)

    def forward(self, features: Tensor, passes: int = 1) -> Tensor:
        """Map features [B, d] to logits [B, classes], averaged over ``passes`` dropout masks."""
        return super().forward(self.drop(features, passes))
