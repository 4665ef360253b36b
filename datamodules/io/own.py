"""What a user's own images have in common: where they are looked for, and a test set that is held out of them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.common.errors import DataError
from datamodules.io.sources import Arrays, ArraysError


def located(options: dict[str, Any], option: str) -> Path:
    """Find the file or folder that an option of a data module names.

    It is looked for in the data directory and, if it is not there, in the current folder.

    Raises:
        DataError: it is in neither; says where it was looked for.
    """
    path = Path(options[option]).expanduser()
    places = [Path(options["data_dir"]) / path, path]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(dict.fromkeys(str(place.absolute()) for place in places))
    raise DataError(f"data.{option}={options[option]} does not exist: looked for {looked}; give an existing path")


def arrays_of(
    where: Path,
    images: list[NDArray[Any]],
    labels: list[NDArray[Any]],
    names: tuple[str, ...],
    test_fraction: float,
    **arguments: Any,
) -> Arrays:
    """A data set of training and test images or, without these, with the same share of every class held out.

    Args:
        where: what errors name.
        images: those for training and, perhaps, those for testing.
        labels: theirs.
        names: the classes' names.
        test_fraction: the share, rounded; one image at least stays on either side.
        **arguments: further arguments of ``Arrays``.

    Raises:
        DataError: see ``Arrays``; there is one class, or a class has no training image; or one has a single image, and
            no test image.
    """
    has_test = len(images) == 2
    if not has_test:  # one image stands for the test set until it is drawn
        images, labels = [images[0], images[0][:1]], [labels[0], np.zeros(1, np.int64)]
    try:
        arrays = Arrays(images[0], labels[0], images[1], labels[1], names, **arguments)
    except ArraysError as error:
        raise DataError(f"{where}: {error}") from error
    members = [np.flatnonzero(arrays.train_labels == label) for label in range(len(names))]
    counts = list(map(len, members))
    if len(names) < 2 or not all(counts):
        fault = "there is one class only" if all(counts) else f"class {counts.index(0)} has no training image"
        raise DataError(f"{where}: {fault}; number the classes 0..C-1 without a gap, two at least")
    if has_test:
        return arrays
    if 1 in counts:
        name = names[counts.index(1)]
        raise DataError(f"{where}: class {name!r} has one image, not one to train and one to test; add images")
    rng, is_test = np.random.RandomState(0), np.zeros(len(arrays.train_labels), dtype=bool)
    for positions in members:
        count = min(max(1, round(test_fraction * len(positions))), len(positions) - 1)
        is_test[rng.permutation(positions)[:count]] = True
    return arrays.dealt(arrays.train_images, arrays.train_labels, ~is_test, is_test)
