"""Views of stored feature vectors: what stands in for images where a frozen encoder has been applied once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.common.errors import DataError, RunError


@dataclass(frozen=True)
class FeatureView:
    """Some of the versions in which feature vectors of a sample are stored; like ``augment.View``, its own geometry.

    Version 0 is the sample as it is; the others are those of its distorted copies. Where there is more to choose from
    than version 0, one is drawn anew at every access.

    Args:
        first: the first version to choose from.
        end: the first that is no longer among them; ``None``: all that follow are.
    """

    first: int = 0
    end: int | None = 1

    @property
    def geometry(self) -> "FeatureView":
        """Key of what ``prepare`` gives."""
        return self

    @property
    def fixed(self) -> bool:
        """Whether it is the sample as it is, and nothing is drawn."""
        return (self.first, self.end) == (0, 1)

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
        chosen = stored[:, self.first : self.end]
        if chosen.shape[1] < (self.end or self.first + 1) - self.first:
            raise DataError(
                f"{self}: only {stored.shape[1]} version(s) of each sample are stored, there is no distorted copy for "
                "this view; choose another data.pipeline"
            )
        return chosen

    def __call__(self, prepared: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Feature vectors float [B, d] of the samples at ``index`` (int64 [B]); the generator picks a version for each.

        Raises:
            RunError: a choice has to be made and there is no generator.
        """
        if self.fixed:
            return prepared[index, 0]
        if generator is None:
            raise RunError(f"{self}: random views need a torch.Generator; pass the generator of the client and round")
        version = torch.randint(prepared.shape[1], index.shape, generator=generator, device=prepared.device)
        return prepared[index, version]
