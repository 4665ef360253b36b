"""Progress of a suite's runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from benchmark.config import Run, identity, spelled
from benchmark.console import Console, printable
from benchmark.report.cost import measured_here, parts, summary
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


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Args:
        state: a key of ``NAMES``.
        done: completed rounds, ``?`` if unreadable.
        accuracy: the reading reported in tables, over the rounds so far, in percent.
        problem: problem with its files, if any.
    """

    state: str
    done: str
    accuracy: float | None = None
    problem: str = ""


def show(plan: Plan, every_run: bool = False, console: Console | None = None) -> None:
    """Print the progress of rows and runs, the counts of states, and the remaining rounds and time.

    Problems with runs are printed below.

    Args:
        plan: the runs of a suite.
        every_run: print one line per run, with its state, rounds, accuracy (the reading reported in tables, over the
            rounds so far) and cells; runs of the same cell and seed also show the options in which they differ.
            Otherwise one line per row, with the states of its seeds and the mean accuracy of the complete ones,
            followed by the runs that have started and are not complete.
        console: where to print; default: standard output.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = 250
    if not plan.runs:
        console.print(f"nothing is run at scale {plan.scale}: every row is pending, or left out", highlight=False)
        return
    progress = {key: _progress(run, plan.found[key].state) for key, run in plan.runs.items()}
    options = _options(plan)
    if every_run:
        console.print(_runs(plan, list(plan.runs), progress, options))
    else:
        console.print(_rows(plan, progress, options))
        begun = [key for key, one in progress.items() if one.state not in ("complete", "missing")]
        if begun:
            console.print()
            console.print(_runs(plan, begun, progress, options))
    console.print(_counts([one.state for one in progress.values()]))
    for line in _left(plan, {key: one.state for key, one in progress.items()}):
        console.print(line, highlight=False)
    for key, run in plan.runs.items():
        if progress[key].state == "failed":
            error = str(read_record(run.folder)["error"]).strip().splitlines()[-1]
            console.print(printable(f"{run.folder.name}: {error}"), markup=False)
    for one in progress.values():
        if one.problem:
            console.print(printable(one.problem), markup=False)


def _rows(plan: Plan, progress: Mapping[str, Progress], options: Mapping[str, str]) -> Table:
    """One line per row: the runs that differ only in the seed."""
    rows: dict[tuple[str, str], list[Progress]] = {}
    for key, run in plan.runs.items():
        rows.setdefault((_cells(run), options[key]), []).append(progress[key])
    table = Table(box=None, pad_edge=False)
    table.add_column("row", overflow="fold")
    table.add_column("seeds")
    table.add_column(_reading(plan), justify="right", no_wrap=True)
    table.add_column("options", overflow="fold")
    for (cells, told), runs in rows.items():
        known = [one.accuracy for one in runs if one.state == "complete" and one.accuracy is not None]
        mean = f"{sum(known) / len(known):.2f}" if known else ""
        table.add_row(_shown(cells), _counts([one.state for one in runs]), mean, _shown(told))
    return table


def _runs(plan: Plan, keys: Sequence[str], progress: Mapping[str, Progress], options: Mapping[str, str]) -> Table:
    """One line per run."""
    table = Table(box=None, pad_edge=False)
    acc = _reading(plan)
    for name in ("state", "run", "seed", "rounds", acc, "cells", "options"):
        right, long = name in ("seed", "rounds", acc), name in ("run", "cells", "options")
        table.add_column(name, justify="right" if right else "left", no_wrap=not long, overflow="fold")
    for key in keys:
        run, one = plan.runs[key], progress[key]
        name, style = NAMES[one.state]
        table.add_row(
            f"[{style}]{name}[/]",
            run.folder.name,
            str(run.config.seed),
            f"{one.done}/{run.config.rounds}",
            "" if one.accuracy is None else f"{one.accuracy:.2f}",
            _shown(_cells(run)),
            _shown(options[key]),
        )
    return table


def _shown(text: str) -> str:
    """A text as it is, for Rich and for a terminal."""
    return escape(printable(text))


def _reading(plan: Plan) -> str:
    """Title of the column of accuracies."""
    return f"acc ({', '.join(dict.fromkeys(run.config.report for run in plan.runs.values()))})"


def _cells(run: Run) -> str:
    return ", ".join(dict.fromkeys(run.cells))


def _counts(states: Iterable[str]) -> str:
    """Count the states, e.g. ``3 DONE, 2 MISSING``."""
    counts = Counter(states)
    return ", ".join(f"[{style}]{counts[state]} {name}[/]" for state, (name, style) in NAMES.items() if counts[state])


def _left(plan: Plan, states: dict[str, str]) -> list[str]:
    """Totals of the plan, and the remaining time, estimated from this machine's records."""
    runtime = next(iter(plan.runs.values())).config.runtime
    measured = measured_here(Path(runtime.results_dir), gpu_name(runtime.accelerator))
    return summary(parts(plan.runs.values(), states, measured))


def _progress(run: Run, state: str) -> Progress:
    """Progress of a run, and the accuracy that tables would report if it ended here."""
    path = run.folder
    try:
        rows = read_rows(path)
        if state == "damaged":
            read_record(path)
    except BenchError as damage:
        return Progress(state, "?", problem=str(damage))
    if not rows:
        return Progress(state, "0")
    done = str(rows[-1]["round"] + 1)
    if run.config.report == "averaged":  # only known at the end
        return Progress(state, done, read_record(path)["averaged"]["acc"] if state == "complete" else None)
    scores = readings(rows, run.config.last_k)[READING[run.config.report]]
    return Progress(state, done, scores.get("acc"))


def _options(plan: Plan) -> dict[str, str]:
    """Return, by run id, the options in which a run differs from others of the same cell and seed."""
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
