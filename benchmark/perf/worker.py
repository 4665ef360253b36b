"""A worker process for tasks, so that a task that fails, hangs or breaks the GPU does not affect the others."""

import gc
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmark.launch.allocator import keep_memory
from benchmark.launch.orphan import die_with_parent
from benchmark.perf.measure import error_line

START_S = 180.0


class TaskFailed(Exception):
    """A task was not done; the message gives the reason in one line."""


class Worker:
    """Runs tasks in a separate process, which is restarted after a crash."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def __call__(self, allowed: float, task: Callable[..., Any], *args: Any) -> Any:
        """Run a task and return its result.

        Args:
            allowed: time limit in seconds.
            task: function, importable by name.
            args: its arguments.

        Raises:
            TaskFailed: it raised an error, exceeded the limit, or ended the process.
        """
        if self.process is None:
            self.start()
        self.pipe.send((task, args))
        healthy, done, answer = self.answer(allowed)
        if not healthy:
            self.close()
        if not done:
            raise TaskFailed(answer)
        return answer

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        if not self.answer(START_S)[1]:
            self.close()
            raise TaskFailed("no process could be started")

    def answer(self, allowed: float) -> tuple[bool, bool, Any]:
        """Return whether the process can continue, whether the task was done, and its result or the reason."""
        try:
            if not self.pipe.poll(allowed):
                return False, False, f"stopped after {allowed:.0f} s"
            received: tuple[bool, bool, Any] = self.pipe.recv()
            return received
        except (EOFError, OSError):
            self.process.join(10)
            return False, False, f"its process ended with exit code {self.process.exitcode}"

    def close(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = self.pipe = None


def here(allowed: float, task: Callable[..., Any], *args: Any) -> Any:
    """Run a task in this process without a limit (for trials).

    Raises:
        TaskFailed: it raised an error.
    """
    try:
        return task(*args)
    except Exception as error:
        raise TaskFailed(error_line(error)) from error


def _work(pipe: Connection) -> None:
    die_with_parent()
    keep_memory()
    pipe.send((True, True, None))
    while True:
        task, args = pipe.recv()
        try:
            done, answer = True, task(*args)
        except Exception as error:
            done, answer = False, error_line(error)
        healthy = tidied()
        pipe.send((healthy, done, answer))


def tidied() -> bool:
    """Free the GPU's memory, and return whether the GPU still responds."""
    gc.collect()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
