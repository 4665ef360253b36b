"""``describe``: a partition."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import TEXT, asked_help
from benchmark.config import apply, class_spec
from benchmark.registry import build
from benchmark.runs.console import printable
from datamodules.common.errors import ConfigError

ABOUT = (
    "Print how a data set is split over clients. Options of the data set are given with a dot: --data.beta 0.8. "
    "`--data.help NAME` lists them."
)
DRAWN = ("partition", "partition_variant", "beta", "labelled_partition", "partition_stream")
"""Options of a data set that say how it is split, unless its clients are given."""
FEW = 12  # with more classes, none has a column of its own


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--data", type=TEXT, help="name or dotted path of the data set")
    parser.add_argument("--data_dir", type=str, default="data", help="folder with the data sets")
    parser.add_argument("--export", type=TEXT, help="write the partition to this file, for --data.partition_file")


def run(options: Namespace, dotted: dict[str, Any]) -> None:
    """Run the command."""
    if asked_help(dotted):
        return
    if others := [name for name in dotted if not name.startswith("data.")]:
        raise ConfigError(f"--{others[0]}: describe takes no options but those of the data set, --data.NAME")
    values = apply({}, {"data": options.data, **dotted})
    spec = class_spec("data", values["data"])
    data = build(spec, "data", data_dir=options.data_dir)
    data.setup()
    given = [name for name in ("partition_file", "clients_in") if data.hparams.get(name)]
    numbered = data.client_names == tuple(map(str, range(len(data.client_names))))  # as drawn clients are
    names = ("num_clients", "scenario", *(given or (DRAWN if numbered else ())))
    drawn = [f"{name}={data.hparams[name]}" for name in names if data.hparams.get(name)]
    print(f"{spec.name}: {', '.join([*drawn, f'partition_seed={data.partition_seed}'])}\n")
    print(printable(f"{_summary(data)}\n\n{data.about()}\npartition hash {data.partition.hash}"))
    if options.export:
        data.export(options.export)
        print(f"saved {options.export}")


def _summary(data: Any) -> str:
    """One line per client, for the server if it has labels, and for all: images, labels, classes, counts per class.

    With more than ``FEW`` classes, the smallest, median and largest count. Images whose class nobody knows have a
    column if there are any.
    """
    import numpy as np
    import pandas as pd
    from tabulate import tabulate

    labelled, unlabelled = data.class_counts("labelled"), data.class_counts("unlabelled")
    names, unknown = list(data.client_names), data.partition.unlabelled.lengths - unlabelled.sum(axis=1)
    if len(data.partition.server):
        held = np.bincount(data.server.labels, minlength=data.num_classes)
        labelled, unlabelled = np.vstack([held, labelled]), np.vstack([held * 0, unlabelled])
        names, unknown = ["server", *names], np.insert(unknown, 0, 0)
    every = pd.DataFrame(labelled + unlabelled, index=names)
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
    return tabulate(table.rename_axis("client"), "keys", tablefmt="simple", stralign="right", numalign="right")
