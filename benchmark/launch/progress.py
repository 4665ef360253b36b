"""Progress of runs: in a terminal one line overall and one per run, in a log plain lines."""

import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmark.config import Run
from benchmark.console import Console, duration, printable
from benchmark.runs.background import repeatedly
from benchmark.runs.records import last_row, read_record
from benchmark.runs.states import saved_rounds, state
from datamodules.common.errors import RunError

PLAIN_EVERY_S, POLL_S = 60.0, 0.5


@dataclass
class Pace:
    """How fast a run goes, judged by when its rounds were seen to end.

    Args:
        run: the run.
        begun: when it was started, in seconds of a monotonic clock.
        said: when the log last had a line about it.
    """

    run: Run
    begun: float
    said: float
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None

    @property
    def done(self) -> int:
        """Rounds done, including those before an interruption."""
        return self.last[1] if self.last else 0

    def see(self, done: int, now: float) -> None:
        """Note that ``done`` rounds are done at the time ``now``."""
        if self.last is None or done < self.last[1]:  # fewer: a resumed run repeats rounds after its checkpoint
            self.first = self.last = now, done
        elif done > self.last[1]:
            self.last = now, done

    def seconds_per_round(self) -> float | None:
        """Mean over the rounds seen; ``None`` until two have ended."""
        if self.first is None or self.last is None or self.first == self.last:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])

    def left(self, now: float) -> float | None:
        """Estimated seconds left."""
        each = self.seconds_per_round()
        if each is None or self.last is None:
            return None
        return max(0.0, each * (self.run.config.rounds - self.last[1]) - (now - self.last[0]))

    def note(self, accuracy: float | None, now: float) -> str:
        """Accuracy, seconds per round and time left, as far as they are known."""
        each, left = self.seconds_per_round(), self.left(now)
        known = [f"acc {accuracy:.2f}"] if accuracy is not None else []
        known += [f"{each:.3g} s per round"] if each is not None else []
        known += [f"{duration(left)} left"] if left is not None else []
        return ", ".join(known)


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
        self.paces: dict[str, Pace] = {}
        self.tasks: dict[str, Any] = {}
        self.live = (
            Progress(
                TextColumn("{task.description}", markup=False),
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

    @property
    def going_on(self) -> list[Run]:
        """The runs in progress."""
        return [pace.run for pace in self.paces.values()]

    def start(self, run: Run) -> None:
        """A run begins."""
        now = time.monotonic()
        self.paces[run.id] = Pace(run, now, now)
        if self.live:
            self.tasks[run.id] = self.live.add_task(label(run), total=run.config.rounds, note="")

    def tick(self) -> None:
        """Update the progress of all runs: at once in a terminal, every ``every_s`` seconds in a log."""
        for key, pace in list(self.paces.items()):
            now, row = time.monotonic(), last_row(pace.run.folder)
            done = rounds_done(pace.run, row)
            if done is not None:
                pace.see(done, now)
            accuracy = row.get("acc") if row else None
            note = pace.note(accuracy if isinstance(accuracy, float) else None, now)
            if self.live:
                self.live.update(self.tasks[key], completed=pace.done, note=note)
            elif now - pace.said >= self.every_s:
                pace.said = now
                going_on = f"for {duration(now - pace.begun)}" if note == "" else note
                rounds = f"{pace.done} of {pace.run.config.rounds} rounds"
                self.console.print(f"  {label(pace.run)}: {rounds}, {going_on}", highlight=False, markup=False)

    def ticking(self) -> AbstractContextManager[None]:
        """Within the context, update the progress regularly from a thread."""
        return repeatedly(self.tick, POLL_S)

    def finish(self, run: Run, status: str, message: str) -> None:
        """A run has ended."""
        self.done += 1
        seconds = time.monotonic() - self.paces.pop(run.id).begun
        if self.live:
            self.live.remove_task(self.tasks.pop(run.id))
            self.live.update(self.all, completed=self.done)
        width = len(str(self.total))
        line = f"[{self.done:>{width}}/{self.total}] {status} {label(run)}, {seconds:.1f} s"
        self.console.print(printable(line + (f": {message}" if message else "")), highlight=False, markup=False)


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
