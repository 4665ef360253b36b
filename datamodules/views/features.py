"""Views of stored feature vectors: what stands in for images where a frozen encoder has been applied once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.common.errors import DataError, RunError


@dataclass(frozen=True)
class FeatureView:
    """One of the versions in which the feature vectors of a sample are stored; like ``augment.View``, its own geometry.

    Version 0 is the sample as it is; the others are those of its distorted copies.

    Args:
        distorted: take one of the copies, drawn anew at every access, instead of version 0.
    """

    distorted: bool = False

    @property
    def geometry(self) -> "FeatureView":
        """Key of what ``prepare`` gives."""
        return self

    def prepare(self, stored: Tensor) -> Tensor:
        """The versions to choose from, of all samples, float [N, V, d] (shares the memory of ``stored``).

        Raises:
            DataError: these are not feature vectors, or there is no distorted copy.
        """
        if not stored.is_floating_point() or stored.ndim != 3:
            raise DataError(
                f"{self}: expected feature vectors, float [N, versions, d], got {stored.dtype} {list(stored.shape)}; "
                "images need another data.pipeline"
            )
        chosen = stored[:, 1:] if self.distorted else stored[:, :1]
        if not chosen.shape[1]:
            raise DataError(f"{self}: only one version of each sample is stored, there is no distorted copy")
        return chosen

    def __call__(self, prepared: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Feature vectors float [B, d] of the samples at ``index`` (int64 [B]); the generator picks a copy for each.

        Raises:
            RunError: a choice has to be made and there is no generator.
        """
        if not self.distorted:
            return prepared[index, 0]
        if generator is None:
            raise RunError(f"{self}: random views need a torch.Generator; pass the generator of the client and round")
        version = torch.randint(prepared.shape[1], index.shape, generator=generator, device=prepared.device)
        return prepared[index, version]
