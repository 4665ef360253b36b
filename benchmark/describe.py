"""How a data set is split over clients: a summary, a picture, a file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from benchmark.classes import ClassSpec, build, find_class, KINDS, typed_args

Counts = NDArray[np.int64]


def describe(spec: ClassSpec, data_dir: str, plot: str | None = None, export: str | None = None) -> None:
    """Print a partition; optionally draw it and save it.

    Args:
        spec: data set and partition.
        data_dir: where data sets lie.
        plot: PNG to write.
        export: file to save the partition to; ``--data.partition_file`` takes it.
    """
    data = build(spec, "data", data_dir=data_dir)
    data.setup()
    labels, part = data.read().train_labels, data.partition
    rows = {role: part.histogram(labels, data.num_classes, role) for role in ("labelled", "unlabelled")}
    server = np.bincount(labels[part.server], minlength=data.num_classes)
    name = spec.name
    print(summary(name, rows["labelled"], rows["unlabelled"], server, data.class_names))
    print(f"partition hash {part.hash}")
    if export:
        part.save(export)
        print(f"saved {export}")
    if plot:
        draw(rows["labelled"], rows["unlabelled"], server, data.class_names, name, Path(plot))
        print(f"drew {plot}")
