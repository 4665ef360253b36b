"""Description of a partition: a summary, a figure, a file."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from benchmark.arguments import build
from benchmark.registry import ClassSpec
from benchmark.report.plots import writable
from datamodules.common.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]

LABELLED, UNLABELLED, ABSENT, INK = "#d1495b", "#9db4c0", "#f3f3f1", "#2b2d33"


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
    every = labelled + unlabelled
    few = every.shape[1] <= 12
    head = ["client", "images", "labelled", "classes"]
    head += [str(c) for c in range(every.shape[1])] if few else ["smallest class", "median", "largest"]
    lines, others = [], [0] * len(names) if unknown is None else unknown.tolist()
    for name, row, known, other in zip(names, every, labelled, others, strict=True):
        own = row[row > 0] if row.any() else np.zeros(1, dtype=np.int64)
        counts = row.tolist() if few else [int(own.min()), int(np.median(own)), int(own.max())]
        lines.append([name, int(row.sum()) + other, int(known.sum()), int((row > 0).sum()), *counts, other])
    total = every.sum(axis=0)
    counts = total.tolist() if few else [int(total.min()), int(np.median(total)), int(total.max())]
    other = sum(others)
    lines.append(["all", int(total.sum()) + other, int(labelled.sum()), int((total > 0).sum()), *counts, other])
    if unknown is None:
        lines = [line[:-1] for line in lines]
    else:
        head.append("unknown")
    return str(tabulate(lines, head, tablefmt="simple", stralign="right", numalign="right"))


def heat_map(
    names: Sequence[str], labelled: Counts, unlabelled: Counts, classes: Sequence[str], title: str
) -> "Figure":
    """Draw images per client and class, with the clients' sizes beside it and labelled clients highlighted.

    Args:
        names: names of the clients.
        labelled: images with labels, int ``[clients, classes]``.
        unlabelled: images without labels, same shape.
        classes: names of the classes.
        title: title of the figure.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    every = labelled + unlabelled
    rows, columns = every.shape
    width, height = float(np.clip(0.42 * columns, 4.2, 11)), float(np.clip(0.32 * rows, 2.2, 12))
    figure = Figure(figsize=(width + 3.2, height + 1.7), layout="constrained")
    heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=[width, 2.2])
    shown = np.ma.masked_equal(every, 0)
    image = heat.imshow(
        shown, aspect="auto", cmap="YlGnBu", norm=PowerNorm(0.5, 0, max(1, every.max())), interpolation="none"
    )
    heat.set_facecolor(ABSENT)
    if rows <= 26 and columns <= 12:
        _write_numbers(heat, every)
    _ticks(heat, names, labelled, classes)

    y = np.arange(rows)
    bars.barh(y, labelled.sum(1), height=0.78, color=LABELLED, label="labelled")
    bars.barh(y, unlabelled.sum(1), height=0.78, left=labelled.sum(1), color=UNLABELLED, label="unlabelled")
    bars.set_xlabel("images", color=INK)
    bars.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8, handlelength=1,
        columnspacing=1,
    )  # fmt: skip
    bars.tick_params(axis="y", which="both", length=0, labelleft=False)
    bars.tick_params(axis="x", labelsize=8)
    bars.set_xlim(0, 1.05 * max(1, every.sum(axis=1).max()))
    bars.locator_params(axis="x", nbins=4)
    for side in ("top", "right", "left"):
        bars.spines[side].set_visible(False)
    colours = figure.colorbar(image, ax=bars, fraction=0.08, pad=0.06)
    colours.outline.set_visible(False)
    colours.ax.tick_params(length=0, labelsize=8)
    colours.set_label("images per class", fontsize=8)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    return figure


def _write_numbers(axes: Any, every: Counts) -> None:
    bright = 0.45 * every.max()
    for (row, column), count in np.ndenumerate(every):
        if count:
            colour = "white" if count > bright else INK
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)


def _ticks(axes: Any, names: Sequence[str], labelled: Counts, classes: Sequence[str]) -> None:
    rows, columns = len(names), len(classes)
    step = math.ceil(rows / 40)
    marked = [r for r in range(rows) if r % step == 0 or (labelled[r].any() and not labelled.any(axis=1).all())]
    axes.set_yticks(marked, [names[r] for r in marked], fontsize=8)
    for tick, row in zip(axes.get_yticklabels(), marked, strict=True):
        if labelled[row].any():
            tick.set_color(LABELLED)
            tick.set_fontweight("bold")
    if columns <= 12:
        long = max(map(len, classes)) > 4
        axes.set_xticks(
            range(columns), classes, fontsize=8, rotation=35 if long else 0, ha="right" if long else "center"
        )
    else:
        axes.set_xticks(range(0, columns, 10))
        axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("class", color=INK)
    axes.set_ylabel("client", color=INK)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    between: dict[str, Any] = {"color": "white", "linewidth": 0.8 if max(rows, columns) <= 30 else 0.3}
    axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, **between)
    axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, **between)


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
