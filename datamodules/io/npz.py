"""Archives of arrays: read with care, written atomically."""

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datamodules.common.errors import ConfigError, DataError, message_of
from datamodules.common.files import replacing
from datamodules.common.memory import available_bytes, in_words


def read_npz(
    file: Path, names: Collection[str] | None = None, remedy: str = "Write it with numpy.savez; text needs .astype(str)"
) -> dict[str, NDArray[Any]]:
    """Read arrays of an ``.npz`` file. None may hold Python objects, whose reading could execute code.

    Args:
        file: the archive.
        names: arrays to read, if they are in it; default: all.
        remedy: what to do about a file that cannot be read.

    Raises:
        ConfigError: the arrays do not fit into memory; none has been read.
        DataError: it is missing, damaged or no archive, or an array holds Python objects.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            wanted = {name: entry for name, entry in entries.items() if names is None or name in names}
            size = sum(entry.file_size for entry in wanted.values())
            free = available_bytes()
            if free is not None and size > free:
                raise ConfigError(f"{file}: its arrays take {in_words(size)} of memory, and {in_words(free)} are free")
            arrays = {}
            for name, entry in wanted.items():
                with archive.open(entry) as content:
                    arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
            return arrays
    except ConfigError:
        raise
    except Exception as error:  # NumPy, zipfile and zlib have their own exceptions
        raise DataError(f"{file} cannot be read as .npz: {message_of(error)}. {remedy}") from error


def write_npz(path: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write an ``.npz`` file atomically; equal arrays give equal bytes.

    Raises:
        DataError: it cannot be written. No partial file remains.
    """
    try:
        with replacing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        size = sum(np.asarray(array).nbytes for array in arrays.values()) / 10**6
        raise DataError(
            f"cannot write {path} ({size:.0f} MB): {error}. Free some space or choose another data_dir"
        ) from error
