"""``plot``: curves from records."""

from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import listed, refuse

ABOUT = "Draw columns of the records of runs against the round."


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    text = str | None
    parser.add_argument("runs", nargs="+", help="folders below results/runs")
    parser.add_argument("--columns", type=str, default="acc", help="keys of metrics.jsonl, e.g. acc,pseudo/selected")
    parser.add_argument("--labels", type=text, help="names of the runs in the legend, one per run, e.g. a,b,c")
    parser.add_argument("--out", type=str, default="curves.png", help="file to write; its suffix says the format")


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Carry the command out; returns its exit code."""
    refuse(dotted, "plot")
    from benchmark.report.plots import learning_curves, read_runs

    rows = read_runs(options.runs, listed(options.labels))
    print(f"wrote {learning_curves(rows, listed(options.columns), options.out)}")
    return 0
