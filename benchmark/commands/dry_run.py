"""``--dry-run`` of ``fit`` and ``table``: what a command would run, and for how long."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from benchmark.config import Run
from benchmark.report.status import Part, measured_here, parts, summary
from benchmark.runs.console import Console, duration
from benchmark.runs.environment import gpu_name


def show(runs: Sequence[Run], states: Mapping[str, str], jobs: int, console: Console | None = None) -> None:
    """Print what is left of the runs: rounds, and hours as far as records of this machine tell.

    Args:
        runs: those of one command, at least one.
        states: state of each (``runs.states.state``), by run id.
        jobs: number of runs at once.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = 200
    jobs = min(jobs, sum(states[run.id] != "complete" for run in runs))
    runtime = runs[0].config.runtime
    found = parts(runs, states, measured_here(Path(runtime.results_dir), gpu_name(runtime.accelerator)))
    console.print(_table(found))
    for line in summary(found, jobs):
        console.print(line, highlight=False)


def _table(found: Sequence[Part]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("runs", "rounds left", "s per round", "time", "judged by", "cells"):
        table.add_column(name, justify="left" if name in ("judged by", "cells") else "right", no_wrap=name != "cells")
    for part in found:
        known, unknown = part.per_round, "unknown" if part.left else "-"
        count = len(part.records)
        table.add_row(
            str(len(part.runs)),
            f"{part.left:,}",
            f"{known:.3g}" if known is not None else unknown,
            duration(part.seconds) if count else unknown,
            f"{count} record{'s' if count > 1 else ''}" if count else "-",
            escape(", ".join(dict.fromkeys(part.runs[0].cells))),
        )
    return table
