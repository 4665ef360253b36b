"""``table``: what the tables of a paper need."""

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import add_suite_arguments, listed, planned, refuse
from benchmark.config import Runtime, folder

ABOUT = "Run what the tables of a paper need and is missing, then write the tables."


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    text = str | None
    add_suite_arguments(parser)
    parser.add_argument(
        "--jobs",
        type=int | Literal["auto"],
        default="auto",
        help="runs at once (default: one per GPU, or core); "
        "on the CPU they share the cores' threads, and other numbers of threads round differently",
    )
    parser.add_argument("--tables", type=text, help="run only what these tables need, e.g. 1,4")
    parser.add_argument("--methods", type=text, help="run only these rows, labels separated by commas")
    parser.add_argument("--only", type=text, help="run only patterns of table/dataset/method, or run ids")
    parser.add_argument(
        "--readme", type=text, help="file whose marked blocks are updated; default: README.md, with --results_dir: none"
    )
    parser.add_class_arguments(Runtime, skip={"devices", "threads", "num_nodes"})


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Carry the command out; returns its exit code."""
    refuse(dotted, "table")
    from benchmark.launch import pool
    from benchmark.launch.progress import Display
    from benchmark.report import tables
    from benchmark.report.loggers import mirror_tables

    runtime = Runtime(**{f.name: options[f.name] for f in fields(Runtime) if f.name in options})
    suite, plan = planned(options, runtime)
    wanted = suite.select(plan, listed(options.tables), listed(options.methods), listed(options.only))
    before = tables.collect(plan)
    missing = [run for run in wanted if before[run.id].state != "complete"]
    outcomes = []
    if missing:
        jobs, gpus = pool.default_jobs(runtime)
        jobs = jobs if options.jobs == "auto" else options.jobs
        outcomes = pool.run_all(missing, jobs, gpus, Display(len(missing)))

    whole = suite.plan(options.scale, runtime=runtime)
    shown = whole if set(plan.seeds) <= set(whole.seeds) else plan
    pages = tables.render(suite, shown, tables.collect(shown), suite.published())
    results = Path(runtime.results_dir)
    readme = options.readme or ("README.md" if runtime.results_dir == Runtime.results_dir else None)
    for path in tables.write(suite, plan.scale, pages, results, Path(readme) if readme else None):
        print(f"wrote {path}")
    if outcomes:
        frames = {page.number: page.frame for page in pages}
        mirror_tables(runtime.wandb, suite.paper, plan.scale, frames, results)
    bad = [outcome for outcome in outcomes if outcome.status != "complete"]
    for outcome in bad:
        where = f"{outcome.run.cells[0]}, {folder(outcome.run.config)}"
        print(f"{outcome.status}: {where}: {outcome.message}", file=sys.stderr)
    return 1 if bad else 0
