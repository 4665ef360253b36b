"""``describe``: a partition."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import asked_help, require
from benchmark.config import apply, class_spec

ABOUT = (
    "Print how a data set is split over clients. Options of the data set are given with a dot: --data.beta 0.8. "
    "`--data.help NAME` lists them."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    text = str | None
    parser.add_argument("--data", type=text, help="name or dotted path of the data set")
    parser.add_argument("--data_dir", type=str, default="data", help="folder with the data sets")
    parser.add_argument(
        "--seed", type=int | None, help="seed of the run, which draws the partition if data.partition_seed is null"
    )
    parser.add_argument("--export", type=text, help="write the partition to this file, for --data.partition_file")


def run(options: Namespace, dotted: dict[str, Any]) -> int:
    """Run the command; returns its exit code."""
    if asked_help(dotted):
        return 0
    from benchmark.report.describe import describe

    values = apply({}, {"data": options.data, **dotted})
    require("data", values)
    describe(class_spec("data", values["data"]), options.data_dir, options.export, options.seed)
    return 0
