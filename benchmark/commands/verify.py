"""``verify``: whether two runs are the same."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from benchmark.runs.console import printable

ABOUT = (
    "Compare two runs: configuration, partition, data, status, every round and the averaged model. Exits with 0 if all "
    "of these are equal, with 1 if not, and with 2 if a run cannot be read. Code and environment are compared too, but "
    "do not count."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("one", type=str, help="folder of a run")
    parser.add_argument("other", type=str, help="folder of another run")


def run(options: Namespace) -> int:
    """Run the command; returns its exit code."""
    from benchmark.report.compare import compare

    found = compare(Path(options.one), Path(options.other))
    print(*map(printable, found.lines), sep="\n")
    if found.equal or found.within is None:
        print("equal" if found.equal else "not equal")
    else:
        where = "inside" if found.within else "outside"
        print(f"not equal; the readings lie {where} the prediction intervals of the row's seeds")
    return 0 if found.equal else 1
