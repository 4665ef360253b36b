"""Progress of a suite's runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from benchmark.config import Run
from benchmark.report.cost import measured_here, parts, summary
from benchmark.runs.console import Console, printable
from benchmark.runs.environment import gpu_name
from benchmark.runs.records import READING, read_record, read_rows, readings
from benchmark.suites.plan import Plan
from datamodules.common.errors import BenchError

NAMES = {
    "complete": ("DONE", "green"),
    "running": ("RUNNING", "cyan"),
    "stale": ("STALE", "yellow"),
    "failed": ("FAILED", "red"),
    "damaged": ("DAMAGED", "red"),
    "outdated": ("OUTDATED", "yellow"),
    "missing": ("MISSING", "dim"),
}


def show(plan: Plan, every_run: bool = False, console: Console | None = None) -> None:
    """Print the progress of rows and runs, the counts of states, and the remaining rounds and time.

    Problems with runs are printed below.

    Args:
        plan: the runs of a suite.
        every_run: print one line per run, with its state, rounds and accuracy (the reading reported in tables, over the
            rounds so far). Otherwise one line per row, with the states of its seeds and the mean accuracy of the
            complete ones, followed by the runs that have started and are not complete.
        console: where to print; default: standard output.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = 250
    if not plan.runs:
        console.print(f"nothing is run at scale {plan.scale}: every row is pending, or left out", highlight=False)
        return
    runs = pd.DataFrame([_progress(run, plan.found[key].state) for key, run in plan.runs.items()], index=[*plan.runs])
    acc = f"acc ({', '.join(dict.fromkeys(run.config.report for run in plan.runs.values()))})"
    shown = list(plan.runs)
    if not every_run:
        console.print(_rows(plan, runs, acc))
        shown = [*runs.index[~runs["state"].isin(["complete", "missing"])]]
    if shown:
        console.print(_runs(plan, runs.loc[shown], acc))
    console.print(_counts(runs["state"]))
    runtime = next(iter(plan.runs.values())).config.runtime
    measured = measured_here(Path(runtime.results_dir), gpu_name(runtime.accelerator))
    for line in summary(parts(plan.runs.values(), runs["state"].to_dict(), measured)):
        console.print(line, highlight=False)
    for problem in filter(None, runs["problem"]):
        console.print(printable(problem), markup=False)


def _rows(plan: Plan, runs: pd.DataFrame, acc: str) -> Table:
    """One line per row: the runs that differ only in the seed."""
    table = Table(box=None, pad_edge=False)
    table.add_column("row", overflow="fold")
    table.add_column("seeds")
    table.add_column(acc, justify="right", no_wrap=True)
    for name, keys in plan.of_row.items():
        own = runs.loc[list(keys.values())]
        mean = own.loc[own["state"] == "complete", "accuracy"].mean()
        table.add_row(escape(printable(name)), _counts(own["state"]), "" if pd.isna(mean) else f"{mean:.2f}")
    return table


def _runs(plan: Plan, runs: pd.DataFrame, acc: str) -> Table:
    """One line per run."""
    table = Table(box=None, pad_edge=False)
    for name in ("state", "run", "seed", "rounds", acc, "cells"):
        right, long = name in ("seed", "rounds", acc), name in ("run", "cells")
        table.add_column(name, justify="right" if right else "left", no_wrap=not long, overflow="fold")
    for key, one in runs.iterrows():
        run, (name, style) = plan.runs[str(key)], NAMES[one["state"]]
        cells = ", ".join(dict.fromkeys(run.cells))
        score = "" if pd.isna(one["accuracy"]) else f"{one['accuracy']:.2f}"
        rounds = f"{one['done']}/{run.config.rounds}"
        folder, seed = run.folder.name, str(run.config.seed)
        table.add_row(f"[{style}]{name}[/]", folder, seed, rounds, score, escape(printable(cells)))
    return table


def _counts(states: Iterable[str]) -> str:
    """Count the states, e.g. ``3 DONE, 2 MISSING``."""
    counts = pd.Series(list(states)).value_counts()
    return ", ".join(f"[{style}]{counts[state]} {name}[/]" for state, (name, style) in NAMES.items() if state in counts)


def _progress(run: Run, state: str) -> dict[str, Any]:
    """State, completed rounds, and the accuracy that tables would report if the run ended here."""
    path, found = run.folder, {"state": state, "done": "?", "accuracy": None, "problem": ""}
    try:
        rows = read_rows(path)
        if state in ("damaged", "failed"):
            error = str(read_record(path)["error"]).strip().splitlines()[-1]
            found["problem"] = f"{path.name}: {error}"
    except BenchError as damage:
        return {**found, "problem": str(damage)}
    found["done"] = str(rows[-1]["round"] + 1) if rows else "0"
    if run.config.report == "averaged":  # only known at the end
        found["accuracy"] = read_record(path)["averaged"]["acc"] if state == "complete" else None
    elif rows:
        found["accuracy"] = readings(rows, run.config.last_k)[READING[run.config.report]].get("acc")
    return found
