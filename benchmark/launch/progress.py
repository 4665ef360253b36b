"""Progress of runs: in a terminal one line overall and one per run, in a log plain lines."""

import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn

from benchmark.config import Run
from benchmark.console import Console, duration, printable
from benchmark.runs.background import repeatedly
from benchmark.runs.records import last_row, read_record
from benchmark.runs.states import saved_rounds, state
from datamodules.common.errors import RunError

PLAIN_EVERY_S, POLL_S = 60.0, 0.5
PERIOD_S = 3600.0  # the speed of a run is that of the rounds that have ended within it


@dataclass
class _Shown:
    """A run that goes on, its line, when it was started, and when the log last had a line about it."""

    run: Run
    task: Task
    begun: float
    said: float


class Display:
    """Progress on stderr: live in a terminal, plain lines elsewhere.

    Args:
        total: number of runs.
        console: where to write, by default stderr.
        every_s: seconds between two plain lines of a run.
    """

    def __init__(self, total: int, console: Console | None = None, every_s: float = PLAIN_EVERY_S) -> None:
        self.every_s = every_s
        self.console = console or Console(file=sys.stderr, soft_wrap=True)
        self.total, self.done = total, 0
        self.live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            speed_estimate_period=PERIOD_S,
            disable=not self.console.is_terminal,
        )
        self.all = self.live.add_task("runs", total=total, note="")
        self.shown: dict[str, _Shown] = {}

    def __enter__(self) -> "Display":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    @property
    def going_on(self) -> list[Run]:
        """The runs in progress."""
        return [one.run for one in self.shown.values()]

    def start(self, run: Run) -> None:
        """A run begins."""
        now = time.monotonic()
        self.live.add_task(label(run), total=run.config.rounds, note="")
        self.shown[run.id] = _Shown(run, self.live.tasks[-1], now, now)

    def tick(self) -> None:
        """Update the progress of all runs: at once in a terminal, every ``every_s`` seconds in a log."""
        for one in list(self.shown.values()):
            row, now = last_row(one.run.folder), time.monotonic()
            self.live.update(one.task.id, completed=rounds_done(one.run, row))
            self.live.update(one.task.id, note=_note(one.task, row))
            if self.live.disable and now - one.said >= self.every_s:
                one.said = now
                note = one.task.fields["note"] or f"for {duration(now - one.begun)}"
                line = f"  {label(one.run)}: {one.task.completed} of {one.task.total} rounds, {note}"
                self.console.print(line, highlight=False, markup=False)

    def ticking(self) -> AbstractContextManager[None]:
        """Within the context, update the progress regularly from a thread."""
        return repeatedly(self.tick, POLL_S)

    def finish(self, run: Run, status: str, message: str) -> None:
        """A run has ended."""
        self.done += 1
        one = self.shown.pop(run.id)
        self.live.remove_task(one.task.id)
        self.live.update(self.all, completed=self.done)
        width, seconds = len(str(self.total)), time.monotonic() - one.begun
        line = f"[{self.done:>{width}}/{self.total}] {status} {label(run)}, {seconds:.1f} s"
        self.console.print(printable(line + (f": {message}" if message else "")), highlight=False, markup=False)


def _note(task: Task, row: dict[str, Any] | None) -> str:
    """Accuracy, seconds per round and time left, as far as they are known."""
    accuracy, left = (row or {}).get("acc"), task.time_remaining
    known = [f"acc {accuracy:.2f}"] if isinstance(accuracy, float) else []
    if task.speed and left is not None:
        known += [f"{1 / task.speed:.3g} s per round", f"{duration(left)} left"]
    return ", ".join(known)


def rounds_done(run: Run, row: dict[str, Any] | None) -> int | None:
    """Rounds that a run has done, from its last row and, if not every round is evaluated, its record.

    ``None`` if neither can be read.
    """
    known = [] if row is None else [int(row["round"]) + 1]
    if run.config.eval_every > 1:
        with suppress(RunError):
            known.append(int(read_record(run.folder)["rounds"]["done"]))
    return max(known, default=None)


def continuation(run: Run) -> str:
    """What the same command would do with an interrupted run, as the end of a sentence."""
    path, rounds = run.folder, run.config.rounds
    if state(path) == "complete":
        return f"finds {path.name} complete"
    saved = saved_rounds(path)
    if saved is None:
        return f"continues {path.name} from its last checkpoint"
    if saved:
        return f"continues {path.name} from round {saved + 1} of {rounds}, after its last checkpoint"
    return f"starts {path.name} from its first round: there is no checkpoint yet"


def label(run: Run) -> str:
    """A run in a few words."""
    more = f" +{len(run.cells) - 1}" if len(run.cells) > 1 else ""
    return printable(f"{run.cells[0]}{more} seed {run.config.seed} ({run.id})")
