"""Progress of runs: in a terminal one line overall and one per run, in a log plain lines."""

import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
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
    """A run that goes on, its line, when it was started, and when the log last had a line about it.

    ``seen`` has times at which rounds had ended, each with their number: the last ones, of one phase of the run.
    """

    run: Run
    task: Task
    begun: float
    said: float
    seen: list[tuple[float, int]] = field(default_factory=list)
    warming_up: bool = False

    def look(self, done: int, warming_up: bool, now: float) -> None:
        """Note how far the run is. Rounds of the warm-up say nothing of those after it."""
        if not self.seen or done > self.seen[-1][1]:
            self.seen = (
                [*self.seen[-1:], (now, done)] if self.warming_up and not warming_up else [*self.seen, (now, done)]
            )
            self.warming_up = warming_up
        while len(self.seen) > 2 and now - self.seen[0][0] > PERIOD_S:
            del self.seen[0]

    def pace(self) -> float | None:
        """Seconds per round; ``None`` before two rounds were seen to end."""
        (begun, first), (ended, last) = self.seen[0], self.seen[-1]
        return (ended - begun) / (last - first) if last > first else None


class Display:
    """Progress on stderr: live in a terminal, plain lines elsewhere.

    Args:
        total: number of runs.
        console: where to write, by default stderr.
        every_s: seconds between two plain lines of a run.
        done: number of runs that have ended already.
    """

    def __init__(
        self, total: int, console: Console | None = None, every_s: float = PLAIN_EVERY_S, done: int = 0
    ) -> None:
        self.every_s = every_s
        self.console = console or Console(file=sys.stderr, soft_wrap=True)
        self.total, self.done = total, done
        self.live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.all = self.live.add_task("runs", total=total, completed=done, note="", visible=total > 1)
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
            if (done := rounds_done(one.run, row)) is not None:
                one.look(done, bool(row and row.get("warmup")), now)
                self.live.update(one.task.id, completed=done, note=_note(one, row))
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


def _note(one: _Shown, row: dict[str, Any] | None) -> str:
    """Accuracy, seconds per round and time left, as far as they are known."""
    accuracy, left, pace = (row or {}).get("acc"), one.run.config.rounds - one.seen[-1][1], one.pace()
    known = [f"acc {accuracy:.2f}"] if isinstance(accuracy, float) else []
    if not left:
        known += ["finishing"]
    elif pace is not None:
        known += [f"{pace:.3g} s per round", f"{duration(max(1.0, left * pace))} left"]
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
