"""``admit``: test whether a leaderboard's settings can be ranked."""

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import add_jobs_arguments, add_suite_arguments, jobs_of, runtime_of
from benchmark.suites.suite import load

ABOUT = "Test whether the settings of a leaderboard can be ranked, using only references, bounds and central rows."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_suite_arguments(parser)
    add_jobs_arguments(parser)


def run(options: Namespace) -> None:
    """Run the command."""
    from benchmark.board import admit

    runtime = runtime_of(options)
    suite = load(options.paper)
    jobs = jobs_of(options, runtime)
    for name, made in admit.admit(suite, options.scale, runtime, jobs).items():
        rises = ", ".join(f"{label} {rise:+.1f}" for label, rise in made["rise"].items() if rise is not None)
        print(
            f"{name}: {'admitted' if made['admitted'] else 'not admitted'}; all labels are worth {made['gap']:.1f} "
            f"points ({admit.GAP:g} needed), unlabelled data {made['premise']:.1f} in one place "
            f"({admit.PREMISE:g} needed); late rise {rises or 'unknown'} (below {admit.RISE:g} needed)"
        )
    print(f"wrote {suite.admitted.path(options.scale)}")
