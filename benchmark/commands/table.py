"""``table``: run what the tables of a paper lack, and write them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands import common
from benchmark.config import Run, Runtime
from benchmark.runs.console import printable
from benchmark.suites.suite import Suite, load
from datamodules.common.precision import PRECISIONS

if TYPE_CHECKING:
    from benchmark.report.tables import Page
    from benchmark.suites.plan import Plan

ABOUT = "Run whatever the tables of a paper still lack, then write the tables."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    common.add_suite_arguments(parser)
    common.add_seeds_argument(parser)
    parser.add_argument("--tables", type=common.TEXT, help="run only what these tables need, e.g. 1,4")
    parser.add_argument("--methods", type=common.TEXT, help="run only these rows: labels, separated by commas")
    parser.add_argument("--only", type=common.TEXT, help="run only patterns of table/dataset/method")
    parser.add_argument(
        "--precision",
        type=common.TEXT,
        help=f"{', '.join(PRECISIONS)}, in place of the suite's: makes separate runs, and tables named after it",
    )
    parser.add_argument(
        "--rounds", type=int | None, help="in place of the suite's: makes separate runs, and tables named after it"
    )
    common.add_flag(parser, "--overwrite", "delete what earlier runs have left of all that is asked for, and run it")
    common.add_flag(parser, "--dry_run", "run nothing; print the rounds left, and the time where records allow")
    parser.add_argument(
        "--slurm",
        type=common.TEXT,
        metavar="OPTIONS",
        help="submit the missing runs as a job array, with these options for sbatch ('' for none); run nothing here",
    )
    parser.add_argument("--slurm_bundle", type=int, default=1, help="runs that a task of the array makes, one by one")
    common.add_jobs_arguments(parser)


def run(options: Namespace) -> int:
    """Run the command; returns its exit code."""
    from benchmark.launch.pool import run_all
    from benchmark.report import leaderboard, tables

    runtime = common.runtime_of(options)
    results = Path(runtime.results_dir)
    suite = load(options.paper)
    rounds = f"{options.rounds}_rounds" if options.rounds is not None else ""
    variant = "-".join(filter(None, [options.scale, options.precision, rounds]))
    name = f"{suite.paper}-{variant}"
    defaults, seeds = suite.scale(options.scale).seeds, common.numbers(options.seeds, "--seeds")
    plan = suite.plan(options.scale, [*defaults, *seeds], runtime, precision=options.precision, rounds=options.rounds)
    table_numbers = common.listed(options.tables, "--tables")
    methods = common.listed(options.methods, "--methods", suite.spec.labels)
    only = common.listed(options.only, "--only", [row.name for row in suite.rows])
    wanted = suite.select(plan, table_numbers, methods, only, seeds or defaults)
    published = suite.published()  # fails before anything runs if the file is missing
    states = {run.id: "missing" if options.overwrite else plan.found[run.id].state for run in wanted}
    missing = [run for run in wanted if states[run.id] != "complete"]
    common.tell_other_code(plan, (run for run in wanted if states[run.id] == "complete"))
    jobs = common.jobs_of(options, runtime)
    if options.slurm is not None and (missing or options.dry_run):
        _submit(missing, options, name)
        return 0
    if options.dry_run:
        common.show_plan(wanted, states, jobs)
        return 0
    if options.overwrite:
        common.check_startable(missing)
        common.discard(run.folder for run in missing)
        plan.look_again(missing)
    outcomes = run_all(missing, jobs) if missing else []

    plan.look_again()
    pages = [tables.Page(suite, plan, published, table) for table in suite.tables]
    written = tables.write(suite, variant, pages, results)
    if suite.ranked:
        written += leaderboard.write(suite, plan, results, name)
    for path in dict.fromkeys(written):
        print(f"wrote {path}")
    if outcomes or written or runtime.wandb in ("online", "offline"):  # the last is explicitly asked for
        _mirror(suite, runtime, options.scale, name, plan, pages)
    shown = [page for page in pages if page.number in table_numbers] or pages[:1]
    for page in shown:
        print(f"\n{page.terminal}")
    others = f" (this one and {len(pages) - len(shown)} more)" if len(pages) > len(shown) else ""
    print(f"{results / 'tables' / name}.md{others}")
    if not missing:
        print(f"nothing was missing: all {len(wanted)} runs are complete")
    bad = [outcome for outcome in outcomes if outcome.status != "complete"]
    for one in bad:
        print(printable(f"{one.status}: {one.run.name}, {one.run.folder}: {one.message}"), file=sys.stderr)
    if bad and options.overwrite:
        print("the same command without --overwrite runs only these", file=sys.stderr)
    return 1 if bad else 0


def _submit(missing: Sequence[Run], options: Namespace, name: str) -> None:
    """Hand the missing runs to SLURM, or say what would be handed over."""
    from benchmark.launch import slurm

    if options.dry_run:
        array = slurm.array_of(len(missing), options.slurm_bundle)
        command = f"{len(missing)} runs: sbatch --array={array} {options.slurm}".rstrip()
        print(command if missing else "nothing is missing")
        return
    script = slurm.write(missing, name, Path(options.results_dir), options.slurm_bundle)
    if options.overwrite:
        slurm.submit(script, options.slurm, trial=True)  # fails before anything is deleted
        common.discard(run.folder for run in missing)
    number = slurm.submit(script, options.slurm)
    print(f"submitted {len(missing)} runs as job array {number} ({script}); `squeue --job {number}` shows them")
    print("when they have ended, the same command without --slurm and --overwrite writes the tables")


def _mirror(suite: Suite, runtime: Runtime, scale: str, name: str, plan: "Plan", pages: "Sequence[Page]") -> None:
    """Send tables to W&B; runs have sent their curves themselves."""
    import pandas as pd

    from benchmark.report import leaderboard
    from benchmark.report.settings import settings
    from benchmark.runs.loggers import choose_mode, mirror_tables

    mode = choose_mode(runtime.wandb, scale)
    if mode == "off":
        return
    frames: dict[str, pd.DataFrame] = {}
    for page in pages:
        printed = page.frame.filter(["published", "spread"]).apply(pd.to_numeric, errors="coerce")
        frames[page.number] = page.frame.assign(**printed)
    if suite.ranked and (found := settings(suite, plan)):
        frames["leaderboard"] = leaderboard.frame(found)
    mirror_tables(mode, Path(runtime.results_dir), scale, name, frames)
