"""``--dry-run`` of ``fit`` and ``table``: what a command would run, for how long, and what that takes."""

import gc
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from benchmark.config import Run, identity
from benchmark.console import Console, duration, size
from benchmark.launch.calibration import BUSY, Calibration, Sizes, Unmeasured
from benchmark.report.cost import Measured, Part, measured_here, parts, summary
from benchmark.runs.capacity import cores, idle_cores
from benchmark.runs.environment import gpu_name
from datamodules.common.errors import BenchError


def show(runs: Sequence[Run], states: Mapping[str, str], jobs: int, console: Console | None = None) -> None:
    """Print what is left of the runs: rounds, hours, memory of the clients' states, and disk.

    The time comes from records of this machine with the same configuration. Without any, a few whole rounds are run and
    discarded, unless another program uses the machine or a round takes too long; then the time is unknown, and the
    table says why. The data are read, and downloaded if they are missing, as in the runs themselves.

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
    results = Path(runtime.results_dir)
    gpu = gpu_name(runtime.accelerator)
    measured = measured_here(results, gpu)
    busy = gpu is None and idle_cores() < cores()
    states_of: dict[int, Sizes] = {}
    reasons: dict[int, str] = {}
    problems: list[str] = []
    for number, part in enumerate(parts(runs, states, measured)):
        if not part.left:
            continue
        first = part.runs[0]
        try:
            calibration = Calibration(first)
            states_of[number] = calibration.sizes()
            if not parts(part.runs, states, measured)[0].estimate:
                if busy:
                    raise Unmeasured(BUSY)
                print(f"measuring rounds of {first.cells[0]}", file=sys.stderr)
                measured.append(
                    Measured(identity(first.config), first.config.rounds, calibration.seconds(), calibration.how)
                )
        except Unmeasured as reason:
            reasons[number] = f"unknown: {reason}"
        except BenchError as error:
            problems.append(f"{first.cells[0]}: {error}")
        gc.collect()  # a federation and its data set refer to each other
    found = parts(runs, states, measured)
    console.print(_table(found, reasons))
    for line in summary(found, jobs):
        console.print(line, highlight=False)
    if states_of:
        console.print(_needs(found, states_of, jobs, results), highlight=False)
    for problem in dict.fromkeys(problems):
        console.print(problem, highlight=False, markup=False)


def _table(found: Sequence[Part], reasons: Mapping[int, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("runs", "rounds left", "s per round", "time", "judged by", "cells"):
        table.add_column(name, justify="left" if name in ("judged by", "cells") else "right", no_wrap=name != "cells")
    for number, part in enumerate(found):
        known, unknown = part.estimate, "?" if part.left else "-"
        table.add_row(
            str(len(part.runs)),
            f"{part.left:,}",
            f"{known.seconds:.3g}" if known else unknown,
            duration(part.seconds) if known else unknown,
            known.source if known else reasons.get(number, "-"),
            escape(", ".join(dict.fromkeys(part.runs[0].cells))),
        )
    return table


def _needs(found: Sequence[Part], sizes: Mapping[int, Sizes], jobs: int, results: Path) -> str:
    """Needs of memory and disk in one sentence."""
    most = max(sizes.values(), key=lambda one: one.clients)
    stays = sum(len(found[number].runs) * one.server for number, one in sizes.items())
    while_running = jobs * max(one.checkpoints for one in sizes.values())
    existing = next(folder for folder in (results, *results.absolute().parents) if folder.exists())
    return (
        f"what clients keep between visits takes up to {size(most.clients)} of memory per run; on disk, checkpoints "
        f"take up to {size(while_running)} meanwhile, and the weights of all runs {size(stays)} "
        f"({size(shutil.disk_usage(existing).free)} are free)"
    )
