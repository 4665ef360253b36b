"""``site``: pages made from records."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import listed, refuse

ABOUT = "Make pages from all records: a leaderboard, a page per paper and, with --runs, a page per run."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")
    parser.add_argument("--out", type=str, default="site", help="folder to write; index.html opens in a browser")
    parser.add_argument(
        "--papers",
        type=str | None,
        help="suites, or paths of .yaml files, separated by commas; default: all that were run",
    )
    parser.add_argument(
        "--metrics",
        type=str | None,
        help="columns of the leaderboard in LaTeX, e.g. acc,acc_worst_clients; default: those of the suite",
    )
    parser.add_argument("--runs", action="store_true", help="also make a page for every run, which takes longer")


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Run the command; returns its exit code."""
    refuse(dotted, "site")
    from benchmark.site.build import build

    papers, metrics = listed(options.papers, "--papers"), listed(options.metrics, "--metrics")
    build(Path(options.results_dir), Path(options.out), papers, options.runs, metrics)
    print(f"wrote {Path(options.out, 'index.html')}")
    return 0
