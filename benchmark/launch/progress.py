"""What a person sees while many runs go on: an overall line and a line per run, or plain lines in a log."""

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmark.config import folder
from benchmark.launch.background import repeatedly
from benchmark.report.records import last_row
from benchmark.suites.suite import PlannedRun

PLAIN_EVERY_S, POLL_S = 60.0, 0.5


class Display:
    """Progress on stderr; live in a terminal, plain lines elsewhere.

    Args:
        total: runs to do.
        console: where to write, by default stderr.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr, soft_wrap=True)
        self.total, self.done = total, 0
        self.started: dict[str, float] = {}
        self.said: dict[str, float] = {}
        self.runs: dict[str, PlannedRun] = {}
        self.tasks: dict[str, Any] = {}
        self.live = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=self.console,
            )
            if self.console.is_terminal
            else None
        )
        if self.live:
            self.all = self.live.add_task("runs", total=total, note="")

    def __enter__(self) -> "Display":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def start(self, run: PlannedRun) -> None:
        """A run begins."""
        self.started[run.id] = self.said[run.id] = time.monotonic()
        self.runs[run.id] = run
        if self.live:
            self.tasks[run.id] = self.live.add_task(label(run), total=run.config.rounds, note="")

    def tick(self) -> None:
        """Look at the last rows of the runs that go on; a run whose row cannot be read is not spoken of."""
        for key, run in self.runs.items():
            row = last_row(folder(run.config))
            if row is None:
                continue
            note = f"acc {row['acc']:.2f}" if isinstance(row.get("acc"), float) else ""
            if self.live:
                self.live.update(self.tasks[key], completed=row["round"] + 1, note=note)
            elif time.monotonic() - self.said[key] >= PLAIN_EVERY_S:
                self.said[key] = time.monotonic()
                self.console.print(
                    f"  {label(run)}: round {row['round'] + 1} of {run.config.rounds}, {note}",
                    highlight=False,
                )

    def ticking(self) -> AbstractContextManager[None]:
        """Look at the rows now and then, from a thread, for as long as the context lasts."""
        return repeatedly(self.tick, POLL_S)

    def finish(self, run: PlannedRun, status: str, message: str) -> None:
        """A run has ended."""
        self.done += 1
        del self.runs[run.id]
        seconds = time.monotonic() - self.started[run.id]
        if self.live:
            self.live.remove_task(self.tasks.pop(run.id))
            self.live.update(self.all, completed=self.done)
        width = len(str(self.total))
        line = f"[{self.done:>{width}}/{self.total}] {status} {label(run)}, {seconds:.1f} s"
        self.console.print(line + (f": {message}" if message else ""), highlight=False, markup=False)


def label(run: PlannedRun) -> str:
    """A run in a few words."""
    more = f" +{len(run.cells) - 1}" if len(run.cells) > 1 else ""
    return f"{run.cells[0]}{more} seed {run.config.seed} ({run.id})"
