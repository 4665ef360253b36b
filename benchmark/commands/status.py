"""``status``: which rows and runs of a paper's tables are complete, and which are missing."""

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import add_seeds_argument, add_suite_arguments, numbers
from benchmark.config import Runtime
from benchmark.suites.suite import load

ABOUT = "Show how much of a paper's tables has been run, and what is still missing."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_suite_arguments(parser)
    add_seeds_argument(parser)
    parser.add_argument("--runs", action="store_true", help="one line per run instead of one per row")
    parser.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")


def run(options: Namespace) -> None:
    """Run the command."""
    from benchmark.report.status import show

    seeds, runtime = numbers(options.seeds, "--seeds"), Runtime(results_dir=options.results_dir)
    show(load(options.paper).plan(options.scale, seeds, runtime), options.runs)
