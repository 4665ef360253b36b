"""Views of stored feature vectors, used instead of images with a frozen encoder."""

from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.common.errors import DataError, RunError


@dataclass(frozen=True)
class FeatureView:
    """A choice of the stored versions of each sample's feature vectors; like ``augment.View``, and its own geometry.

    Version 0 is the original sample; the others belong to its distorted copies. If there is more to choose from than
    version 0, one is drawn at every access.

    Args:
        first: first version to choose from.
        end: end of the range of versions (exclusive); ``None``: no limit.
    """

    first: int = 0
    end: int | None = 1

    @property
    def geometry(self) -> "FeatureView":
        """Key of the output of ``prepare``."""
        return self

    @property
    def fixed(self) -> bool:
        """Whether this is the original sample without any draw."""
        return (self.first, self.end) == (0, 1)

    def prepare(self, stored: Tensor) -> Tensor:
        """Return all samples' versions to choose from, float [N, V, d] (shares memory with ``stored``).

        Raises:
            DataError: ``stored`` are not feature vectors, or have too few versions.
        """
        if stored.ndim != 3 or stored.shape[1] < (self.end or self.first + 1):
            raise DataError(
                f"{self}: expected feature vectors [N, versions, d] with all these versions, got {stored.dtype} "
                f"{list(stored.shape)}; choose another data.pipeline"
            )
        return stored[:, self.first : self.end]

    def __call__(self, prepared: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return feature vectors float [B, d] of samples ``index`` (int64 [B]), with versions drawn by the generator.

        Raises:
            RunError: a version must be drawn, but there is no generator.
        """
        if self.fixed:
            return prepared[index, 0]
        if generator is None:
            raise RunError(f"{self}: random views need a torch.Generator; pass the generator of the client and round")
        version = torch.randint(prepared.shape[1], index.shape, generator=generator, device=prepared.device)
        return prepared[index, version]
