"""Progress of runs: in a terminal one line overall and one per run, in a log plain lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn

from benchmark.config import Run
from benchmark.runs.console import Console, duration, printable
from benchmark.runs.lock import repeatedly
from benchmark.runs.records import last_row, read_record
from benchmark.runs.states import saved_rounds, state
from datamodules.common.errors import RunError, Stopped

PLAIN_EVERY_S, POLL_S = 60.0, 0.5
PERIOD_S = 3600.0  # the speed of a run is that of the rounds that have ended within it


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
        self.now = self.console.get_time
        self.total, self.done = total, 0
        self.live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=PERIOD_S,
        )
        self.all = self.live.add_task("runs", total=total, note="", visible=total > 1)
        self.shown: dict[str, tuple[Run, Task]] = {}

    def __enter__(self) -> "Display":
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        """If runs are interrupted, tell how many have ended, and where the others would go on."""
        self.live.stop()
        if kind in (KeyboardInterrupt, Stopped):
            if self.total > 1:
                self._say(f"{self.done} of {self.total} runs have ended")
            for run, _ in self.shown.values():
                self._say(f"  {continuation(run)}")

    def start(self, run: Run) -> None:
        """A run begins."""
        now = self.now()
        self.live.add_task(label(run), total=run.config.rounds, note="", begun=now, said=now, warmup=False)
        self.shown[run.id] = run, self.live.tasks[-1]

    def tick(self) -> None:
        """Update the progress of all runs: at once in a terminal, every ``every_s`` seconds in a log."""
        for run, task in list(self.shown.values()):
            row = last_row(run.folder)
            if (done := rounds_done(run, row)) is not None:
                warmup = bool(row and row.get("warmup"))
                if task.fields["warmup"] and not warmup:  # its rounds say nothing of those after it
                    self.live.reset(task.id, completed=int(task.completed))
                self.live.update(task.id, completed=done, warmup=warmup)
                self.live.update(task.id, note=_note(task, row))
            if self.live.disable and self.now() - task.fields["said"] >= self.every_s:
                note = task.fields["note"] or f"for {duration(self.now() - task.fields['begun'])}"
                self._say(f"  {label(run)}: {task.completed} of {task.total} rounds, {note}")
                self.live.update(task.id, said=self.now())

    @contextmanager
    def following(self, run: Run) -> Iterator[None]:
        """Within the context, show a run of this process, from a thread."""
        with self, repeatedly(self.tick, POLL_S):
            self.start(run)
            yield

    def finish(self, run: Run, status: str, message: str) -> None:
        """A run has ended."""
        self.done += 1
        _, task = self.shown.pop(run.id)
        seconds = self.now() - task.fields["begun"]
        self.live.remove_task(task.id)
        self.live.update(self.all, completed=self.done)
        line = f"[{self.done:>{len(str(self.total))}}/{self.total}] {status} {label(run)}, {seconds:.1f} s"
        self._say(line + (f": {message}" if message else ""))

    def _say(self, line: str) -> None:
        self.console.print(printable(line), highlight=False, markup=False)


def _note(task: Task, row: dict[str, Any] | None) -> str:
    """Accuracy, seconds per round and time left, as far as they are known."""
    accuracy = (row or {}).get("acc")
    known = [f"acc {accuracy:.2f}"] if isinstance(accuracy, float) else []
    if not task.remaining:
        known += ["finishing"]
    elif task.speed:
        known += [f"{1 / task.speed:.3g} s per round", f"{duration(max(1.0, task.remaining / task.speed))} left"]
    return ", ".join(known)


def rounds_done(run: Run, row: dict[str, Any] | None) -> int | None:
    """Rounds that a run has done, from its last row and, if not every round is evaluated, its record.

    ``None`` if neither can be read.
    """
    known = [] if row is None else [row["round"] + 1]
    if run.config.eval_every > 1:
        with suppress(RunError):
            known.append(read_record(run.folder)["rounds"]["done"])
    return max(known, default=None)


def continuation(run: Run) -> str:
    """Where an interrupted run goes on."""
    name = run.folder.name
    if state(run.folder) == "complete":
        return f"{name} is complete"
    if saved := saved_rounds(run.folder):
        return f"{name} continues after {saved} of {run.config.rounds} rounds, from its last checkpoint"
    return f"{name} starts from its first round: there is no checkpoint yet"


def label(run: Run) -> str:
    """A run in a few words."""
    return printable(f"{run.name} seed {run.config.seed} ({run.id})")
