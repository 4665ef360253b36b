"""``table``: what the tables of a paper need."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import (
    add_jobs_arguments,
    add_seeds_argument,
    add_suite_arguments,
    check_startable,
    discard,
    jobs_and_gpus,
    listed,
    made_by_other_code,
    numbers,
    refuse,
    runtime_of,
    same_command,
    warn_of_slow_precision,
)
from benchmark.config import Run, Runtime
from benchmark.console import printable
from benchmark.launch.signals import STOPPED
from benchmark.suites.suite import Suite, load
from datamodules.common.errors import ConfigError, Stopped
from datamodules.common.precision import PRECISIONS

if TYPE_CHECKING:
    from benchmark.launch.pool import RunOutcome
    from benchmark.report.layout import Rendered
    from benchmark.suites.plan import Plan

ABOUT = "Run whatever the tables of a paper still lack, then write the tables."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    text = str | None
    add_suite_arguments(parser)
    add_seeds_argument(parser)
    parser.add_argument("--tables", type=text, help="run only what these tables need, e.g. 1,4")
    parser.add_argument("--methods", type=text, help="run only these rows: labels, separated by commas")
    parser.add_argument("--only", type=text, help="run only patterns of table/dataset/method, or run ids")
    parser.add_argument(
        "--precision",
        type=text,
        help=f"{', '.join(PRECISIONS)}, in place of the suite's: makes separate runs, and tables named after it",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="delete what earlier runs have left of all that is asked for, and run it",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="run nothing; tell rounds, and time as far as records tell"
    )
    parser.add_argument(
        "--slurm",
        type=text,
        metavar="OPTIONS",
        help="submit the missing runs as a job array, with these options for sbatch ('' for none); run nothing here",
    )
    parser.add_argument("--slurm_bundle", type=int, default=1, help="runs that a task of the array makes, one by one")
    parser.add_argument(
        "--slurm_at_once", type=int | None, help="most tasks of the array that run at the same time; default: no limit"
    )
    parser.add_argument(
        "--readme", type=text, help="file whose marked blocks are updated (default: README.md; none with --results_dir)"
    )
    add_jobs_arguments(parser)


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Run the command; returns its exit code."""
    refuse(dotted, "table")
    runtime = runtime_of(options)
    named = options.readme or ("README.md" if runtime.results_dir == Runtime.results_dir else None)
    readme = Path(named) if named and Path(named).exists() else None
    if options.readme and readme is None:
        raise ConfigError(f"--readme {options.readme}: there is no such file")
    suite = load(options.paper)
    return _run(suite, options, runtime, readme)


def _name(options: Namespace) -> str:
    """The part of the tables' file names that follows the paper's."""
    return f"{options.scale}-{options.precision}" if options.precision else str(options.scale)


def _run(suite: Suite, options: Namespace, runtime: Runtime, readme: Path | None) -> int:
    from benchmark.launch import pool
    from benchmark.launch.progress import Display, continuation

    own, asked = suite.scale(options.scale)["seeds"], numbers(options.seeds, "--seeds")
    plan = suite.plan(options.scale, [*own, *asked], runtime, options.precision)
    wished = listed(options.tables, "--tables")
    methods = listed(options.methods, "--methods", suite.spec["labels"])
    only = listed(options.only, "--only", suite.names())
    wanted = suite.select(plan, wished, methods, only, asked or own)
    published = suite.published()  # fails before anything runs if the file is missing
    states = {run.id: "missing" if options.overwrite else plan.found[run.id].state for run in wanted}
    missing = [run for run in wanted if states[run.id] != "complete"]
    complete = [run for run in wanted if states[run.id] == "complete"]
    for note in made_by_other_code((run, record) for run in complete if (record := plan.found[run.id].record)):
        print(printable(note), file=sys.stderr)
    jobs, gpus = jobs_and_gpus(options, runtime)
    if options.slurm is not None:
        code = _submit(missing, options, f"{suite.paper}-{_name(options)}", runtime)
        if code is not None:
            return code
    if options.dry_run:
        from benchmark.commands.dry_run import show

        show(pool.pinned(wanted, jobs, gpus), states, jobs)
        return 0
    for precision in dict.fromkeys(run.config.precision for run in missing):
        warn_of_slow_precision(precision, runtime.accelerator)
    if options.overwrite:
        check_startable(missing)
        discard(run.folder for run in missing)
        plan.look_again(missing)
    outcomes: list[pool.RunOutcome] = []
    if missing:
        display = Display(len(missing))
        try:
            outcomes = pool.run_all(missing, jobs, gpus, display)
        except (KeyboardInterrupt, Stopped) as ended:
            how, code = (str(ended), STOPPED) if isinstance(ended, Stopped) else ("interrupted", 130)
            again = same_command(options.overwrite)
            print(f"{how} after {display.done} of {len(missing)} runs; {again}", file=sys.stderr)
            for run in display.going_on:
                print(f"  {continuation(run)}", file=sys.stderr)
            return code

    plan.look_again()
    pages = _write(suite, plan, published, options, runtime, readme, mirror=bool(outcomes))
    page = Path(runtime.results_dir) / "tables" / f"{suite.paper}-{_name(options)}.md"
    _show(pages, wished, page)
    if not missing:
        print(f"nothing was missing: all {len(wanted)} runs are complete")
    bad = [outcome for outcome in outcomes if outcome.status != "complete"]
    _complain(bad)
    if bad and options.overwrite:
        print(f"{same_command(options.overwrite)} runs only these", file=sys.stderr)
    return 1 if bad else 0


def _submit(missing: Sequence[Run], options: Namespace, name: str, runtime: Runtime) -> int | None:
    """Hand the missing runs to SLURM, or say what would be handed over; ``None`` if there are none."""
    from benchmark.launch import slurm

    array = slurm.Array(options.slurm_bundle, options.slurm_at_once)
    if options.dry_run:
        print(slurm.plan(missing, options.slurm, array) if missing else "nothing is missing")
        return 0
    if not missing:
        return None
    script = slurm.write(missing, name, Path(runtime.results_dir), array)
    if options.overwrite:
        slurm.submit(script, options.slurm, trial=True)  # fails before anything is deleted
        discard(run.folder for run in missing)
    number = slurm.submit(script, options.slurm)
    print(f"submitted {len(missing)} runs as job array {number} ({script}); `squeue --job {number}` shows them")
    print("when they have ended, the same command without --slurm writes the tables")
    return 0


def _write(
    suite: Suite,
    plan: "Plan",
    published: Mapping[Any, str],
    options: Namespace,
    runtime: Runtime,
    readme: Path | None,
    mirror: bool,
) -> "list[Rendered]":
    """Write what is made of the runs; returns the tables."""
    from benchmark.report import excerpt, leaderboard, tables

    results, named = Path(runtime.results_dir), _name(options)
    name = f"{suite.paper}-{named}"
    pages = tables.render(suite, plan, published)
    written = tables.write(suite, named, pages, results, readme)
    if suite.ranked:
        written += leaderboard.write(suite, plan, results, name, readme)
    if readme:
        written += excerpt.update(readme, name, pages, plan, results)
    for path in dict.fromkeys(written):
        print(f"wrote {path}")
    if mirror or written or runtime.wandb in ("online", "offline"):  # the last is explicitly asked for
        _mirror(suite, runtime, options.scale, name, plan, pages)
    return pages


def _mirror(
    suite: Suite,
    runtime: Runtime,
    scale: str,
    name: str,
    plan: "Plan",
    pages: "Sequence[Rendered]",
) -> None:
    """Send tables (long and as published) and learning curves to W&B."""
    from benchmark.report import excerpt, leaderboard
    from benchmark.report.differences import draw_differences, panels
    from benchmark.report.formats import numeric
    from benchmark.report.settings import settings
    from benchmark.runs.loggers import choose_mode, mirror_tables

    if choose_mode(runtime.wandb, scale) == "off":
        return
    frames: dict[str, Any] = {page.number: numeric(page.frame, ("table", "runs")) for page in pages}
    figures = {}
    for page in pages:
        if len(page.layout.only_run().rows):
            frames[f"{page.number} as published"] = page.wide
        for dataset in page.layout.touched_data():
            if drawn := excerpt.learning_curves(page, dataset, plan):
                figures[f"curves {page.number} {dataset}"] = drawn[0]
    if suite.ranked and (found := settings(suite, plan)):
        frames["leaderboard"] = leaderboard.frame(found)
        figures["leaderboard"] = draw_differences(panels(suite, found))
    mirror_tables(runtime, scale, name, frames, figures)


def _show(pages: "Sequence[Rendered]", asked: Sequence[str], path: Path) -> None:
    """Print the tables that were asked for, or else the first one, and the file that holds all of them."""
    shown = [page for page in pages if page.number in asked] or pages[:1]
    for page in shown:
        print(f"\n{page.terminal}")
    others = f" (this one and {len(pages) - len(shown)} more)" if len(pages) > len(shown) else ""
    print(f"{path}{others}")


def _complain(bad: "Sequence[RunOutcome]") -> None:
    for outcome in bad:
        where = f"{outcome.run.cells[0]}, {outcome.run.folder}"
        print(printable(f"{outcome.status}: {where}: {outcome.message}"), file=sys.stderr)
