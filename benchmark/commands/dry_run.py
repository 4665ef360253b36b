"""``--dry-run`` of ``fit`` and ``table``: what a command would run, and for how long."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from benchmark.config import Run
from benchmark.report.status import measured_here, parts, summary
from benchmark.runs.console import duration, printable
from benchmark.runs.environment import gpu_name

HEADS = ("runs", "rounds left", "s per round", "time", "records", "cells")


def show(runs: Sequence[Run], states: Mapping[str, str], jobs: int) -> None:
    """Print what is left of the runs: rounds, and hours as far as records of the same rows on this machine tell.

    Args:
        runs: those of one command, at least one.
        states: state of each (``runs.states.state``), by run id.
        jobs: number of runs at once.
    """
    runtime = runs[0].config.runtime
    found = parts(runs, states, measured_here(Path(runtime.results_dir), gpu_name(runtime.accelerator)))
    body = []
    for part in found:
        pace = "unknown" if part.per_round is None else f"{part.per_round:.3g}"
        time = "unknown" if part.per_round is None else duration(part.seconds)
        cells = printable(", ".join(dict.fromkeys(part.runs[0].cells)))
        body.append([len(part.runs), f"{part.left:,}", pace, time, len(part.records), cells])
    print(tabulate(body, HEADS, tablefmt="plain", disable_numparse=True))
    for line in summary(found, min(jobs, sum(states[run.id] != "complete" for run in runs))):
        print(line)
