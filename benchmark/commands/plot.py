"""``plot``: learning curves of runs, or of a suite's rows."""

from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import TEXT, listed
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError

ABOUT = "Draw columns of the records of runs, or of a suite's rows with their seeds averaged."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("runs", nargs="*", help="folders of runs; or name rows of a suite with --suite and --row")
    parser.add_argument("--suite", type=TEXT, help="the suite of --row, or the path of a .yaml file")
    parser.add_argument(
        "--row",
        action="append",
        help="table/dataset/method, as `status` lists it, or a pattern of these; may be given several times",
    )
    parser.add_argument("--scale", type=str, default="quick", help="scale of the suite")
    parser.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")
    parser.add_argument(
        "--axis", type=Literal["round", "bytes", "seconds"], default="round", help="what to draw against"
    )
    parser.add_argument("--columns", type=str, default="acc", help="keys of metrics.jsonl, e.g. acc,pseudo/selected")
    parser.add_argument("--labels", type=TEXT, help="names of the curves in the legend, one per curve, e.g. a,b,c")
    parser.add_argument("--out", type=str, default="curves.png", help="file to write; its suffix gives the format")


def run(options: Namespace) -> None:
    """Run the command."""
    from benchmark.report.plots import learning_curves, read_runs, read_suite_rows

    labels, columns = listed(options.labels, "--labels"), listed(options.columns, "--columns")
    if bool(options.suite) != bool(options.row) or bool(options.row) == bool(options.runs):
        raise ConfigError("plot: name folders of runs, or rows of a suite: --suite PAPER --row TABLE/DATASET/METHOD")
    if options.suite:
        curves = read_suite_rows(load(options.suite), options.row, options.scale, options.results_dir, labels)
    else:
        curves = read_runs(options.runs, labels)
    print(f"wrote {learning_curves(curves, columns, options.out, options.axis)}")
