"""How far the runs of a suite are."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from benchmark.config import folder
from benchmark.records import read_record, read_rows
from benchmark.suite import Plan
from benchmark.tables import collect

NAMES = {
    "complete": ("DONE", "green"),
    "running": ("RUNNING", "cyan"),
    "stale": ("STALE", "yellow"),
    "failed": ("FAILED", "red"),
    "outdated": ("OUTDATED", "yellow"),
    "missing": ("MISSING", "dim"),
}


def show(plan: Plan, console: Console | None = None) -> None:
    """Print one line per run (state, rounds, accuracy, cells) and the counts of the states."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 250
    table = Table(box=None, pad_edge=False)
    for name in ("state", "run", "seed", "rounds", "acc", "cells"):
        right = name in ("seed", "rounds", "acc")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "cells")
    found = collect(plan)
    for key, run in plan.runs.items():
        path, (name, style) = folder(run.config), NAMES[found[key].state]
        rows = read_rows(path)
        done = rows[-1]["round"] + 1 if rows else 0
        acc = rows[-1].get("acc") if rows else None
        table.add_row(
            f"[{style}]{name}[/]",
            path.name,
            str(run.config.seed),
            f"{done}/{run.config.rounds}",
            "" if acc is None else f"{acc:.2f}",
            ", ".join(run.cells),
        )
    console.print(table)
    counts = Counter(run.state for run in found.values())
    console.print(", ".join(f"{counts[state]} {name}" for state, (name, _) in NAMES.items() if counts[state]))
    for key, run in plan.runs.items():
        if found[key].state == "failed":
            error = str(read_record(folder(run.config))["error"]).strip().splitlines()[-1]
            console.print(f"{folder(run.config).name}: {error}", markup=False)
