"""Functions in fresh processes: measurements that need one of their own, and tasks that may break theirs."""

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from benchmark.launch.process import die_with_parent, keep_memory
from benchmark.perf.measure import error_line

START_S = 180.0


class TaskFailed(Exception):
    """A task was not done; the message gives the reason in one line."""


def process(threads: int | None = 1, keep: bool = True) -> ProcessPoolExecutor:
    """A fresh process that does what is submitted to it, one task after the other.

    Args:
        threads: of it; ``None``: what torch chooses.
        keep: whether it keeps freed memory (see ``benchmark.launch.process``).
    """
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (threads, keep))


def together(processes: Sequence[ProcessPoolExecutor], task: Callable[..., Any], *args: Any) -> list[Any]:
    """What a task returns in each of these processes, which do it at the same time."""
    return [future.result() for future in [one.submit(task, *args) for one in processes]]


class Worker:
    """Does tasks in a process of its own, which is started anew after one that it did not survive: a task that fails,
    hangs or breaks the GPU costs the others nothing.

    Args:
        start_s: seconds that a process may take to start.
    """

    def __init__(self, start_s: float = START_S) -> None:
        self.start_s = start_s
        self.pool: ProcessPoolExecutor | None = None

    def __call__(self, allowed: float, task: Callable[..., Any], *args: Any) -> Any:
        """Run a task and return its result.

        Args:
            allowed: time limit in seconds.
            task: function, importable by name.
            args: its arguments.

        Raises:
            TaskFailed: it raised an error, exceeded the limit, or ended the process; or no process starts.
        """
        pool = self.pool or self._started()
        try:
            return pool.submit(_tidily, task, *args).result(allowed)
        except TaskFailed:
            raise
        except TimeoutError:
            reason = f"stopped after {allowed:.0f} s"
        except BrokenProcessPool:
            pool.shutdown()  # a thread of the pool collects the process
            reason = f"its process ended with exit code {self.process.exitcode}"
        except Exception as error:  # not the task's: the GPU does not respond
            reason = error_line(error)
        self.close()
        raise TaskFailed(reason)

    def _started(self) -> ProcessPoolExecutor:
        others = set(multiprocessing.active_children())
        pool = self.pool = process(threads=None)
        first = pool.submit(os.getpid)
        (self.process,) = set(multiprocessing.active_children()) - others
        try:
            first.result(self.start_s)
        except (TimeoutError, BrokenProcessPool) as error:
            self.close()
            raise TaskFailed(f"no process starts: {error_line(error)}") from error
        return pool

    def close(self) -> None:
        """End the process, whatever it does."""
        if self.pool is not None:
            self.process.kill()
            self.pool.shutdown()
            self.pool = None


def here(allowed: float, task: Callable[..., Any], *args: Any) -> Any:
    """Run a task in this process without a limit (for trials).

    Raises:
        TaskFailed: it raised an error.
    """
    try:
        return task(*args)
    except Exception as error:
        raise TaskFailed(error_line(error)) from error


def _begin(threads: int | None, keep: bool) -> None:
    die_with_parent()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    if keep:
        keep_memory()


def _tidily(task: Callable[..., Any], *args: Any) -> Any:
    """Do a task, then free the GPU's memory; an error other than ``TaskFailed`` means that the GPU does not respond."""
    try:
        return here(0.0, task, *args)
    finally:
        torch = sys.modules.get("torch")  # a process that needs none starts without it
        if torch is not None and torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
