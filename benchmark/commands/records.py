"""``records``: check runs against the rules, or write all results to one table."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import TEXT, listed
from benchmark.runs.console import printable
from datamodules.common.errors import ConfigError

ABOUT = "Check whether runs follow the rules, or write all results to one Parquet file and one CSV file."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--check",
        type=str,
        nargs="+",
        metavar="FOLDER",
        help="check these runs, or all runs below these folders: print every problem, and exit with 1 if there is one. "
        "Nothing is run, and no class that only a record names is imported",
    )
    parser.add_argument("--export", type=TEXT, help="write all results to this .parquet file, and to a .csv beside it")
    parser.add_argument("--papers", type=TEXT, help="suites, e.g. news,mine.yaml; default: those of this package")
    parser.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")
    parser.add_argument("--data_dir", type=str, default="data", help="with --check: folder with the data sets")


def run(options: Namespace) -> int:
    """Run the command; returns its exit code."""
    if (options.check is None) == (options.export is None):
        raise ConfigError("records needs either --check FOLDER or --export FILE")
    from benchmark.suites.suite import available, load

    suites = [load(paper) for paper in listed(options.papers, "--papers") or available()]
    if options.check is None:
        from benchmark.report.release import export

        print(f"wrote {options.export}: {export(Path(options.results_dir), Path(options.export), suites)} runs")
        return 0
    from benchmark.board.checking import Checker, runs_below

    checker = Checker(suites, options.data_dir)
    runs = [path for folder in options.check for path in runs_below(Path(folder))]
    found: dict[str, list[Path]] = {}
    for path in runs:
        for problem in checker.problems(path):
            found.setdefault(problem, []).append(path)
    rows, problems = checker.rows()
    for problem, where in found.items():
        others = f" and {len(where) - 1} more" if len(where) > 1 else ""
        problems.append(f"{where[0]}{others}: {problem}")
    print(*map(printable, [*rows, *problems]), f"{len(runs)} runs, {len(problems)} problems", sep="\n")
    return 1 if problems else 0
