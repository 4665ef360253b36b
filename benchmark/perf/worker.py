"""Functions in fresh processes: tasks one after the other, or the same unit in several processes at the same time."""

import gc
import multiprocessing
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmark.launch.allocator import keep_memory
from benchmark.launch.orphan import die_with_parent
from benchmark.perf.measure import Unit, error_line

START_S = 180.0


class TaskFailed(Exception):
    """A task was not done; the message gives the reason in one line."""


class Process:
    """A fresh process that does what it is sent, one task after the other.

    Args:
        threads: of it; ``None``: what torch chooses.
        keep: whether it keeps freed memory (see ``benchmark.launch.allocator``).
    """

    def __init__(self, threads: int | None = None, keep: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, threads, keep), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, task: Callable[..., Any], *args: Any) -> None:
        """Have a task done; ``answer`` waits for it.

        Args:
            task: importable by name.
            args: its arguments.
        """
        self.pipe.send((task, args))

    def answer(self, allowed: float | None = None) -> Any:
        """What the task returned. Where the process cannot go on, it is closed.

        Args:
            allowed: seconds after which it is stopped; ``None``: never.

        Raises:
            TaskFailed: it raised an error, took too long, or ended the process.
        """
        try:
            if not self.pipe.poll(allowed):
                healthy, done, answer = False, False, f"stopped after {allowed:.0f} s"
            else:
                healthy, done, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            healthy, done, answer = False, False, f"its process ended with exit code {self.process.exitcode}"
        if not healthy:
            self.close()
        if not done:
            raise TaskFailed(answer)
        return answer

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self.pipe.closed

    def close(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Worker:
    """Does tasks in a process of its own, which is started anew after one that it did not survive: a task that fails,
    hangs or breaks the GPU costs the others nothing.
    """

    def __init__(self) -> None:
        self.process: Process | None = None

    def __call__(self, allowed: float, task: Callable[..., Any], *args: Any) -> Any:
        """Run a task and return its result.

        Args:
            allowed: time limit in seconds.
            task: function, importable by name.
            args: its arguments.

        Raises:
            TaskFailed: it raised an error, exceeded the limit, or ended the process.
        """
        if self.process is None or self.process.closed:
            self.process = Process()
            self.process.send(_nothing)
            self.process.answer(START_S)
        self.process.send(task, *args)
        return self.process.answer(allowed)

    def close(self) -> None:
        """End the process."""
        if self.process is not None and not self.process.closed:
            self.process.close()


class Processes:
    """Processes that run the same unit at the same time; calling it runs all of them once.

    Args:
        make: returns the unit of a process, given its number and ``args``; importable by name.
        count: number of processes.
        args: further arguments of ``make``.
        keep: whether the processes keep freed memory.
        threads: threads of each.

    Raises:
        TaskFailed: a unit could not be made.
    """

    def __init__(self, make: Callable[..., Unit], count: int, *args: Any, keep: bool = True, threads: int = 1) -> None:
        self.processes = [Process(threads, keep) for _ in range(count)]
        try:
            self.on_each(_make_unit, ((make, number, *args) for number in range(count)))
        except TaskFailed:
            self.close()
            raise

    def __call__(self, *args: Any) -> list[Any]:
        """Run the unit everywhere, with these arguments; what each process returned.

        Raises:
            TaskFailed: a unit failed.
        """
        return self.on_each(_run_unit, (args for _ in self.processes))

    def on_each(self, task: Callable[..., Any], args: Iterable[tuple[Any, ...]]) -> list[Any]:
        """What the task returns in each process, with the arguments of each."""
        for process, own in zip(self.processes, args, strict=True):
            process.send(task, *own)
        return [process.answer() for process in self.processes]

    def close(self) -> None:
        """End the processes, and wait until they are gone."""
        for process in self.processes:
            if not process.closed:
                process.close()


def here(allowed: float, task: Callable[..., Any], *args: Any) -> Any:
    """Run a task in this process without a limit (for trials).

    Raises:
        TaskFailed: it raised an error.
    """
    try:
        return task(*args)
    except Exception as error:
        raise TaskFailed(error_line(error)) from error


def _work(pipe: Connection, threads: int | None, keep: bool) -> None:
    die_with_parent()
    if threads is not None:
        torch.set_num_threads(threads)
    if keep:
        keep_memory()
    while True:
        task, args = pipe.recv()
        try:
            done, answer = True, task(*args)
        except Exception as error:
            done, answer = False, error_line(error)
        healthy = tidied()
        pipe.send((healthy, done, answer))


def _nothing() -> None:
    """A process that has done this is ready."""


_units: list[Unit] = []


def _make_unit(make: Callable[..., Unit], *args: Any) -> None:
    _units.append(make(*args))


def _run_unit(*args: Any) -> Any:
    return _units[-1](*args)


def tidied() -> bool:
    """Free the GPU's memory, and return whether the GPU still responds."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
