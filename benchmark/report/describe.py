"""Description of a partition: a summary, a figure, a file."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tabulate import tabulate

from benchmark.registry import ClassSpec, build
from benchmark.report.plots import writable
from datamodules.common.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]

LABELLED, UNLABELLED = "#d1495b", "#9db4c0"
FEW = 12  # classes that have a column of their own


def describe(
    spec: ClassSpec, data_dir: str, plot: str | None = None, export: str | None = None, seed: int | None = None
) -> None:
    """Print a partition; optionally draw and save it.

    Args:
        spec: data set and partition.
        data_dir: directory of the data sets.
        plot: PNG to write.
        export: file to save the partition to, for ``--data.partition_file``.
        seed: seed of the run, used for the partition if ``partition_seed`` is null; default: a run's default.

    Raises:
        ConfigError: a file cannot be written, or ``seed`` would have no effect.
    """
    if plot:
        writable(plot, "--plot")
    if export:
        writable(export, "--export", formats=())
    data = build(spec, "data", data_dir=data_dir, **({} if seed is None else {"run_seed": seed}))
    fixed = data.hparams.partition_seed
    if seed is not None and fixed is not None:
        raise ConfigError(
            f"--seed {seed}: has no effect, since data.partition_seed is {fixed}; add --data.partition_seed null"
        )
    data.setup()
    part, labelled, unlabelled = data.partition, data.class_counts("labelled"), data.class_counts("unlabelled")
    names, unknown = list(data.client_names), np.zeros(part.num_clients, dtype=np.int64)
    if not data.knows_all:
        unknown = part.unlabelled.lengths - unlabelled.sum(axis=1)
    if len(part.server):
        held = np.bincount(data.server.labels, minlength=data.num_classes)
        labelled, unlabelled = np.vstack([held, labelled]), np.vstack([held * 0, unlabelled])
        names, unknown = ["server", *names], np.insert(unknown, 0, 0)
    title = f"{spec.name}: {part.num_clients} clients, {_how(data)}"
    print(f"{title}\n")
    print(summary(names, labelled, unlabelled, None if data.knows_all else unknown))
    print(f"\n{data.about()}\npartition hash {part.hash}")
    if export:
        data.export(export)
        print(f"saved {export}")
    if plot:
        heat_map(names, labelled, unlabelled, list(data.class_names), title).savefig(plot, dpi=160)
        print(f"drew {plot}")


def summary(names: Sequence[str], labelled: Counts, unlabelled: Counts, unknown: Counts | None = None) -> str:
    """Format one line per client: sizes, number of classes, and counts per class.

    Args:
        names: names of the clients.
        labelled: images with labels, int ``[clients, classes]``.
        unlabelled: images without labels, same shape.
        unknown: images whose class nobody knows, int ``[clients]``, for a column of their own.
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
    if unknown is not None:
        table["unknown"] = [*unknown, unknown.sum()]
        table["images"] += table["unknown"]
    return str(tabulate(table.rename_axis("client"), "keys", tablefmt="simple", stralign="right", numalign="right"))


def heat_map(
    names: Sequence[str], labelled: Counts, unlabelled: Counts, classes: Sequence[str], title: str
) -> "Figure":
    """Draw images per client and class, with the clients' sizes, labelled and unlabelled, beside it.

    Args:
        names: names of the clients.
        labelled: images with labels, int ``[clients, classes]``.
        unlabelled: images without labels, same shape.
        classes: names of the classes.
        title: title of the figure.
    """
    from matplotlib.figure import Figure

    every = labelled + unlabelled
    rows, columns = every.shape
    width, height = float(np.clip(0.42 * columns, 4.2, 11)), float(np.clip(0.32 * rows, 2.2, 12))
    figure = Figure(figsize=(width + 3.2, height + 1.7), layout="constrained")
    heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=[width, 2.2])
    image = heat.imshow(np.ma.masked_equal(every, 0), aspect="auto", cmap="YlGnBu", norm="symlog")
    if rows <= 26 and columns <= FEW:
        for (row, column), count in np.ndenumerate(every):
            bright = "white" if count > every.max() / 4 else "black"
            heat.text(column, row, str(count or ""), ha="center", va="center", fontsize=7, color=bright)
    y, known = np.arange(rows), labelled.sum(axis=1)
    bars.barh(y, known, color=LABELLED, label="labelled")
    bars.barh(y, unlabelled.sum(axis=1), left=known, color=UNLABELLED, label="unlabelled")
    bars.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8)
    bars.set_xlabel("images")
    marked = y[:: math.ceil(rows / 40)]
    heat.set_yticks(marked, [names[row] for row in marked], fontsize=8)
    if columns <= FEW:
        heat.set_xticks(range(columns), classes, fontsize=8, rotation=35, ha="right")
    heat.set(xlabel="class", ylabel="client")
    figure.colorbar(image, ax=bars, fraction=0.08, pad=0.06, label="images per class")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def _how(data: Any) -> str:
    options = data.hparams
    if options["partition_file"]:
        return f"from {options['partition_file']}"
    if options.get("clients_in"):
        return f"clients in {options['clients_in']}, labels at {str(options['scenario']).replace('_', ' ')}"
    split, of_labels = _split(options, options["partition"]), options["labelled_partition"]
    if of_labels and of_labels != options["partition"]:
        split += f", labelled images {_split(options, of_labels)}"
    who = str(options["scenario"]).replace("_", " ")
    stream = f" of the stream {options['partition_stream']}" if options["partition_stream"] else ""
    again = f", drawn again {data.partition.redraws} times" if options["labelled_min_per_class"] else ""
    return f"{split}, seed {data.partition_seed}{stream}{again}, labels at {who}"


def _split(options: Any, kind: str) -> str:
    if kind == "iid":
        return kind
    per = " per client" if options["partition_variant"] == "per_client" else ""
    return f"Dirichlet({options['beta']:g})" + (" over pairs of clients" if kind == "pairs" else per)
