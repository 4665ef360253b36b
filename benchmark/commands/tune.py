"""``tune``: choose the learning rates of a suite's rows."""

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands import common
from benchmark.suites.suite import load

ABOUT = "Choose the learning rates of a suite's rows by whole runs that are scored on held-out training examples."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    common.add_suite_arguments(parser)
    parser.add_argument(
        "--row", type=str | None, help="tune only patterns of table/dataset/method, separated by commas"
    )
    common.add_flag(parser, "--overwrite", "delete what earlier trials of these rows have left, and run them again")
    common.add_jobs_arguments(parser)


def run(options: Namespace) -> None:
    """Run the command."""
    from benchmark.board.tune import tune

    runtime = common.runtime_of(options)
    suite = load(options.paper)
    rows = suite.matching(common.listed(options.row, "--row", [row.name for row in suite.rows]), options.scale)
    jobs = common.jobs_of(options, runtime)
    if options.overwrite:
        common.forget_trials(suite, options.scale, rows, runtime)
    tuned = tune(suite, options.scale, rows, runtime, jobs)
    for name, made in tuned.items():
        chosen = ", ".join(f"{option} {value:g}" for option, value in made["options"].items())
        print(f"{name}: {chosen} of {len(made['tried'])} tried{'' if made['interior'] else ', not interior'}")
    print(f"wrote {suite.tuned.path(options.scale)}" if tuned else "nothing to tune: all keep their papers' rates")
