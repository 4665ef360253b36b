"""Description of a partition: a summary, and a file."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tabulate import tabulate

from benchmark.arguments import build
from benchmark.registry import ClassSpec
from datamodules.common.errors import ConfigError

Counts = NDArray[np.int64]
DRAWN = (
    *("partition_file", "clients_in", "num_clients", "scenario", "partition", "partition_variant", "beta"),
    *("labelled_partition", "labelled_min_per_class", "partition_stream"),
)
"""Options of a data set that say how it is split."""
FEW = 12  # classes that have a column of their own


def describe(spec: ClassSpec, data_dir: str, export: str | None = None, seed: int | None = None) -> None:
    """Print a partition; optionally save it.

    Args:
        spec: data set and partition.
        data_dir: directory of the data sets.
        export: file to save the partition to, for ``--data.partition_file``.
        seed: seed of the run, used for the partition if ``partition_seed`` is null; default: a run's default.

    Raises:
        ConfigError: ``seed`` would have no effect.
    """
    data = build(spec, "data", data_dir=data_dir, **({} if seed is None else {"run_seed": seed}))
    fixed = data.hparams.partition_seed
    if seed is not None and fixed is not None:
        raise ConfigError(
            f"--seed {seed}: has no effect, since data.partition_seed is {fixed}; add --data.partition_seed null"
        )
    data.setup()
    part, labelled, unlabelled = data.partition, data.class_counts("labelled"), data.class_counts("unlabelled")
    names, unknown = list(data.client_names), part.unlabelled.lengths - unlabelled.sum(axis=1)
    if len(part.server):
        held = np.bincount(data.server.labels, minlength=data.num_classes)
        labelled, unlabelled = np.vstack([held, labelled]), np.vstack([held * 0, unlabelled])
        names, unknown = ["server", *names], np.insert(unknown, 0, 0)
    drawn = [f"{name}={data.hparams[name]}" for name in DRAWN if data.hparams.get(name)]
    print(f"{spec.name}: {', '.join([*drawn, f'partition_seed={data.partition_seed}'])}\n")
    print(summary(names, labelled, unlabelled, unknown))
    print(f"\n{data.about()}\npartition hash {part.hash}")
    if export:
        data.export(export)
        print(f"saved {export}")


def summary(names: Sequence[str], labelled: Counts, unlabelled: Counts, unknown: Counts) -> str:
    """Format one line per client: sizes, number of classes, and counts per class.

    Args:
        names: names of the clients.
        labelled: images with labels, int ``[clients, classes]``.
        unlabelled: images without labels, same shape.
        unknown: images whose class nobody knows, int ``[clients]``; they have a column if there are any.
    """
    every = pd.DataFrame(labelled + unlabelled, index=[*names])
    known = pd.Series(labelled.sum(axis=1), every.index)
    every.loc["all"], known["all"] = every.sum(), known.sum()
    table = pd.DataFrame({"images": every.sum(axis=1), "labelled": known, "classes": (every > 0).sum(axis=1)})
    if every.shape[1] <= FEW:
        table = table.join(every)
    else:
        own = every.where(every > 0)
        spread = {"smallest class": own.min(axis=1), "median": own.median(axis=1), "largest": own.max(axis=1)}
        table = table.assign(**spread).fillna(0).astype(int)
    if unknown.any():
        table["unknown"] = [*unknown, unknown.sum()]
        table["images"] += table["unknown"]
    return str(tabulate(table.rename_axis("client"), "keys", tablefmt="simple", stralign="right", numalign="right"))
