"""How far the runs of a suite are."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmark.config import folder, identity, spelled
from benchmark.launch.environment import gpu_name
from benchmark.report.cost import measured_here, parts, summary
from benchmark.report.records import read_record, read_rows, readings
from benchmark.report.tables import READING, collect
from benchmark.suites.plan import Plan, PlannedRun
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


def show(plan: Plan, console: Console | None = None) -> None:
    """Print one line per run, the counts of the states, and what is left with the time that it will take.

    A line has state, rounds, accuracy (the reading that the tables report, over the rounds so far) and cells; runs
    of one cell and seed also have the options in which they differ. What is wrong with a run is said below.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = 250
    table = Table(box=None, pad_edge=False)
    reported = dict.fromkeys(run.config.report for run in plan.runs.values())
    acc = f"acc ({', '.join(reported)})"
    for name in ("state", "run", "seed", "rounds", acc, "cells", "options"):
        right = name in ("seed", "rounds", acc)
        table.add_column(name, justify="right" if right else "left", no_wrap=name not in ("cells", "options"))
    found, options, problems = collect(plan), _options(plan), []
    for key, run in plan.runs.items():
        path, (name, style) = folder(run.config), NAMES[found[key].state]
        try:
            done, value = _progress(run)
            if found[key].state == "damaged":
                read_record(path)
        except BenchError as damage:
            done, value = "?", ""
            problems.append(str(damage))
        table.add_row(
            f"[{style}]{name}[/]",
            path.name,
            str(run.config.seed),
            f"{done}/{run.config.rounds}",
            value,
            escape(", ".join(dict.fromkeys(run.cells))),
            escape(options[key]),
        )
    console.print(table)
    counts = Counter(run.state for run in found.values())
    console.print(", ".join(f"{counts[state]} {name}" for state, (name, _) in NAMES.items() if counts[state]))
    for line in _left(plan, {key: run.state for key, run in found.items()}):
        console.print(line, highlight=False)
    for key, run in plan.runs.items():
        if found[key].state == "failed":
            error = str(read_record(folder(run.config))["error"]).strip().splitlines()[-1]
            console.print(f"{folder(run.config).name}: {error}", markup=False)
    for problem in problems:
        console.print(problem, markup=False)


def _left(plan: Plan, states: dict[str, str]) -> list[str]:
    """Totals of the plan, and the time that is left, judged by the records of this machine."""
    runtime = next(iter(plan.runs.values())).config.runtime
    measured = measured_here(Path(runtime.results_dir), gpu_name(runtime.accelerator))
    return summary(parts(plan.runs.values(), states, measured))


def _progress(run: PlannedRun) -> tuple[str, str]:
    """Rounds done, and the accuracy that the tables would report if the run ended here."""
    rows = read_rows(folder(run.config))
    if not rows:
        return "0", ""
    scores = readings(rows, run.config.last_k)[READING[run.config.report]]
    acc = scores.get("acc")
    return str(rows[-1]["round"] + 1), "" if acc is None else f"{acc:.2f}"


def _options(plan: Plan) -> dict[str, str]:
    """By run id, the options in which a run differs from others of the same cell and seed."""
    flat = {key: spelled(identity(run.config)) for key, run in plan.runs.items()}
    differing: dict[str, set[str]] = {key: set() for key in flat}
    groups: dict[tuple[str, int], list[str]] = {}
    for key, run in plan.runs.items():
        for cell in dict.fromkeys(run.cells):
            groups.setdefault((cell, run.config.seed), []).append(key)
    for group in groups.values():
        names = dict.fromkeys(name for key in group for name in flat[key])
        apart = {name for name in names if len({str(flat[key].get(name)) for key in group}) > 1}
        for key in group:
            differing[key] |= apart
    return {
        key: " ".join(f"{name}={values[name]}" for name in values if name in differing[key])
        for key, values in flat.items()
    }
