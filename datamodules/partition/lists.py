"""Many short lists of positions stored in two arrays, with little memory per client."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Positions = NDArray[np.int64]

NOTHING: Positions = np.empty(0, dtype=np.int64)


class Lists(Sequence[Positions]):
    """Lists of positions, int64 and read-only: list ``k`` is ``flat[starts[k] : starts[k + 1]]``.

    Args:
        flat: all lists, concatenated, int64 ``[n]``.
        starts: int64 ``[lists + 1]``; the last entry is ``n``.
    """

    def __init__(self, flat: Positions, starts: Positions) -> None:
        self.flat, self.starts = flat.view(), starts.view()
        self.flat.setflags(write=False)
        self.starts.setflags(write=False)

    @classmethod
    def of(cls, parts: Sequence[ArrayLike]) -> "Lists":
        """Copy lists of integers, unless they are ``Lists`` already."""
        if isinstance(parts, Lists):
            return parts
        arrays = [np.asarray(part, dtype=np.int64) for part in parts]
        return cls(np.concatenate([NOTHING, *arrays]), np.cumsum([0, *map(len, arrays)], dtype=np.int64))

    @property
    def lengths(self) -> Positions:
        """Return the length of every list, int64 ``[lists]``."""
        return np.diff(self.starts)

    @property
    def owners(self) -> Positions:
        """Return the list number of every entry of ``flat``, int64 ``[n]``."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def kept(self, keep: NDArray[np.bool_]) -> "Lists":
        """Keep only the entries of ``flat`` for which ``keep``, bool ``[n]``, is true."""
        return Lists(self.flat[keep], np.concatenate(([0], np.cumsum(keep)))[self.starts])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> Positions:  # type: ignore[override]
        k = range(len(self))[number]
        return self.flat[self.starts[k] : self.starts[k + 1]]
