"""Timing after a warm-up, in turns, in processes of their own; tables that name their machine."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmark.launch.process import keep_memory
from benchmark.runs.code_identity import code_version
from benchmark.runs.environment import cpu_model

Unit = Callable[..., Any]
REPEATS = 3
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TaskFailed(Exception):
    """A task was not done; the message gives the reason in one line."""


class Section:
    """A table of measurements that grows line by line.

    Args:
        title: title of the table.
        headers: column names.
        note: explanation below the table.
    """

    def __init__(self, title: str, headers: Sequence[str], note: str) -> None:
        self.title, self.headers, self.note = title, headers, note
        self.rows: list[list[Any]] = []

    def add(self, row: Sequence[Any]) -> "Section":
        """Append a line, padded if needed; return the section."""
        self.rows.append([*row, *[""] * (len(self.headers) - len(row))])
        return self

    def text(self) -> str:
        """Format the table as Markdown; floats have three significant digits."""
        lines = [self.headers, ["---"] * len(self.headers), *(map(_shown, row) for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n\n{table}\n\n{self.note} ({machine()})\n"


def machine() -> str:
    """Describe machine, code and day."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{date.today()}; {cpu_model()}, {CORES} cores, {gpu}, torch {torch.__version__}, code {code_version()}"


def seconds(unit: Unit) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    unit()
    return time.perf_counter() - start


def interleaved(units: Mapping[str, Unit], repeats: int = REPEATS) -> dict[str, float]:
    """Median seconds of each unit, run in turn ``repeats`` times after one warm-up turn."""
    turns = [{name: seconds(unit) for name, unit in units.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in units}


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, or a cell with the error if it fails."""
    try:
        return work()
    except Exception as error:
        return f"failed: {reason(error)}"


def reason(error: BaseException) -> str:
    """Type and first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def alone(task: Unit, *args: Any, threads: int | None = None, allowed: float | None = None) -> Any:
    """Run a task in a process of its own, so that what it leaves, breaks or forgets costs others nothing.

    Args:
        task: function, importable by name.
        args: its arguments.
        threads: threads of torch; default: torch's own choice.
        allowed: time limit in seconds.

    Raises:
        TaskFailed: it raised an error, exceeded the limit, or ended the process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.perf.gpu"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, threads, task, args))
    process.start()
    sender.close()
    try:
        if not receiver.poll(allowed):
            raise TaskFailed(f"stopped after {allowed:.0f} s")
        result, failure = receiver.recv()
    except EOFError:
        process.join()
        raise TaskFailed(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if failure:
        raise TaskFailed(failure)
    return result


def _answer(sender: Connection, threads: int | None, task: Unit, args: Sequence[Any]) -> None:
    keep_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        sender.send((task(*args), None))
    except Exception as error:
        sender.send((None, reason(error)))


def _shown(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
