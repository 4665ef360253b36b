"""``enter``: a method's own row in a setting of a leaderboard, from tuning to its place."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import (
    add_jobs_arguments,
    add_seeds_argument,
    add_suite_arguments,
    discard,
    forget_trials,
    jobs_and_gpus,
    made_by_other_code,
    numbers,
    runtime_of,
)
from benchmark.files import dump_yaml, read_yaml, write_atomic
from benchmark.registry import KINDS, find_class
from benchmark.suites import side_files
from benchmark.suites.suite import Suite, load
from datamodules.common.errors import ConfigError, RunError

ABOUT = (
    "Give a method a row in a setting of a leaderboard: tune its learning rate by the rules, run its seeds and "
    "whatever else the setting lacks, and show where it ranks. Options of the method are given as --method.NAME."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_suite_arguments(parser)
    add_seeds_argument(parser)
    parser.add_argument("--method", type=str, required=True, help="name or dotted path of the method")
    parser.add_argument("--table", type=str, required=True, help="the setting: a table of the suite")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="delete what earlier trials and runs of the method in this setting have left, and run them again",
    )
    add_jobs_arguments(parser)


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Run the command; returns its exit code."""
    if others := [name for name in dotted if not name.startswith("method.")]:
        raise ConfigError(f"enter takes no --{others[0]}: all rows of a setting share it")
    from benchmark.board.tune import tune
    from benchmark.launch import pool
    from benchmark.launch.progress import Display
    from benchmark.launch.resume import is_complete
    from benchmark.report import leaderboard
    from benchmark.report.settings import settings

    runtime = runtime_of(options)
    path, label = _written(options, dotted)
    suite = load(str(path))
    jobs, gpus = jobs_and_gpus(options, runtime)
    own = [row for row in suite.matching([f"{options.table}/*"], options.scale) if row.method == label]
    seeds = numbers(options.seeds, "--seeds")

    def folders(suite: Suite) -> list[Path]:
        runs = [suite.runs(row, options.scale, seeds, runtime=runtime) for row in own]
        return [one.folder for of_row in runs for one in of_row.values()]

    side_files.check((suite.tuned, suite.admitted), options.scale)
    if options.overwrite:
        forget_trials(suite, options.scale, own, runtime, folders(suite))
    tune(suite, options.scale, own, runtime, jobs)

    suite = load(str(path))  # with what was chosen
    plan = suite.plan(options.scale, seeds, runtime)
    tables = [table.number for table in suite.tables if options.table in (table.number, table.untuned)]
    wanted = suite.select(plan, tables)
    of_method = {name for row in own for name in plan.of_row[row.full_name].values()}
    if options.overwrite:
        discard(folders(suite))  # an earlier choice may have been the new one
    for note in made_by_other_code((one, record) for one in wanted if (record := plan.found[one.id].record)):
        print(note, file=sys.stderr)
    missing = [
        one
        for one in wanted
        if plan.found[one.id].state != "complete" or (one.id in of_method and not is_complete(one))
    ]
    outcomes = pool.run_all(missing, jobs, gpus, Display(len(missing))) if missing else []
    plan.look_again()
    for setting in settings(suite, plan):
        if setting.table.number == options.table:
            print(f"\n{leaderboard.standing(setting, label)}\n\n{leaderboard.comparison(setting)}")
    print(f"\nthe row is described by {path}, what was tried by {suite.tuned.path(options.scale)}")
    if bad := [one for one in outcomes if one.status != "complete"]:
        raise RunError(f"{len(bad)} runs have no result, first {bad[0].run.cells[0]}: {bad[0].message}")
    return 0


def _written(options: Namespace, dotted: Mapping[str, Any]) -> tuple[Path, str]:
    """The file of a suite that adds the method's row to the leaderboard, written if it is missing, and the row's label.

    Raises:
        ConfigError: the suite has no such setting or has the label already, or the file describes another row.
    """
    extended, label = load(options.paper), options.method.rpartition(".")[2]
    find_class(options.method, KINDS["method"])
    _check(extended, options.table, label)
    paper = f"{extended.paper}-{label}"
    spec = {
        "extends": options.paper,
        "paper": paper,
        "labels": {label: {"method": options.method}},
        "tables": {options.table: {"rows": [{"method": label, "set": dict(dotted)}]}},
    }
    path = Path(f"{paper}-{options.table}.yaml")
    if not path.exists():
        write_atomic(path, dump_yaml(spec))
    elif read_yaml(path, "suite") != spec:
        raise ConfigError(f"{path} describes another row than these options do; delete it, or rename it to keep both")
    return path, label


def _check(suite: Suite, table: str, label: str) -> None:
    ranked = [one.number for one in suite.tables if one.reference]
    if table not in ranked:
        raise ConfigError(f"--table {table}: {suite.where} compares rows in {', '.join(ranked) or 'no table'}")
    if label in suite.spec["labels"]:
        raise ConfigError(f"{suite.where} has a row {label} already: give the class of the method another name")
