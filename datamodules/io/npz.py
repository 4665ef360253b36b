"""Archives of arrays, written atomically."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from datamodules.common.errors import DataError
from datamodules.common.files import sweep, temporary_name


def write_npz(path: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write an ``.npz`` file atomically; equal arrays give equal bytes.

    Raises:
        DataError: it cannot be written. No partial file remains.
    """
    sweep(path)
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        size = sum(np.asarray(array).nbytes for array in arrays.values()) / 10**6
        raise DataError(
            f"cannot write {path} ({size:.0f} MB): {error}. Free some space or choose another data_dir"
        ) from error
