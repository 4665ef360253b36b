"""``enter``: a method's own row in a setting of a leaderboard, from tuning to its place."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands import common
from benchmark.suites.suite import Suite, load
from datamodules.common.errors import ConfigError, RunError

ABOUT = (
    "Give a method a row in a setting of a leaderboard: tune its learning rate by the rules, run its seeds and "
    "whatever else the setting lacks, and show where it ranks. Options of the method are given as --method.NAME."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    common.add_suite_arguments(parser)
    common.add_seeds_argument(parser)
    parser.add_argument("--method", type=str, required=True, help="name or dotted path of the method")
    parser.add_argument("--table", type=str, required=True, help="the setting: a table of the suite")
    about = "options that switch the method's unlabelled loss off, e.g. '{lambda_u: 0}', for a control (RULES.md)"
    parser.add_argument("--control", type=dict, default={}, help=about)
    about = "delete what earlier trials and runs of the method in this setting have left, and run them again"
    common.add_flag(parser, "--overwrite", about)
    common.add_jobs_arguments(parser)


def run(options: Namespace, dotted: Mapping[str, Any]) -> None:
    """Run the command."""
    if others := [name for name in dotted if not name.startswith("method.")]:
        raise ConfigError(f"enter takes no --{others[0]}: all rows of a setting share it")
    from benchmark.board.enter import enter
    from benchmark.board.tune import is_done, tune
    from benchmark.launch.pool import run_all
    from benchmark.report import leaderboard
    from benchmark.report.settings import settings
    from benchmark.runs.code_identity import code_version

    if code_version().endswith("-dirty"):
        print("note: runs of uncommitted code cannot be handed in; commit the method first", file=sys.stderr)
    runtime = common.runtime_of(options)
    control = {f"method.{name}": value for name, value in options.control.items()}
    suite, rows = enter(options.paper, options.table, options.method, dotted, control, options.scale, runtime)
    jobs = common.jobs_of(options, runtime)
    seeds = common.numbers(options.seeds, "--seeds")

    def folders(suite: Suite) -> list[Path]:
        by_row = [suite.runs(row, options.scale, seeds, runtime=runtime) for row in rows]
        return [run.folder for runs in by_row for run in runs.values()]

    if options.overwrite:
        common.forget_trials(suite, options.scale, rows, runtime, folders(suite))
    tune(suite, options.scale, rows, runtime, jobs)

    suite = load(suite.where)  # with what was chosen
    plan = suite.plan(options.scale, seeds, runtime)
    tables = [table.number for table in suite.tables if options.table in (table.number, table.untuned)]
    wanted = suite.select(plan, tables)
    of_method = {name for row in rows for name in plan.of_row[row.full_name].values()}
    if options.overwrite:
        common.discard(folders(suite))  # an earlier choice may have been the new one
    common.tell_other_code(plan, wanted)
    ended = ("complete", "failed")  # of another row: it stays failed
    missing = [
        run for run in wanted if plan.found[run.id].state not in ended or (run.id in of_method and not is_done(run))
    ]
    outcomes = run_all(missing, jobs) if missing else []
    plan.look_again()
    found = [setting for setting in settings(suite, plan) if setting.table.number == options.table]
    for setting in found:
        print(f"\n{leaderboard.brief(setting, rows[0].method)}")
    for line in leaderboard.interim(suite, plan, found) if found else ():
        print(f"\n{line.replace('**', '')}")
    print(f"\nthe row is described by {suite.where}, what was tried by {suite.tuned.path(options.scale)}")
    if bad := [outcome for outcome in outcomes if outcome.status != "complete"]:
        raise RunError(f"{len(bad)} runs have no result, first {bad[0].run.name}: {bad[0].message}")
