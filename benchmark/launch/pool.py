"""Many runs on one machine: worker processes that take one run at a time and report how it ended."""

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmark.config import Run, Runtime
from benchmark.launch.launchers import refuse_torchrun
from benchmark.launch.orphan import die_with_parent
from benchmark.launch.placement import kept_threads
from benchmark.launch.progress import Display
from benchmark.launch.signals import STOPPED, check_stopped, stop, stoppable
from benchmark.registry import imported, one_line
from benchmark.runs.capacity import asked_threads, bearable, check_processes, cores
from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked
from benchmark.runs.states import state
from datamodules.common.errors import BenchError, Stopped, message_of

FIT = "benchmark.run.fit"
LOG = "output.log"
POLL_S = 0.5


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: ``complete``, ``failed``, or ``busy`` (another process works on it)."""

    run: Run
    status: str
    message: str = ""


def run_all(runs: Sequence[Run], jobs: int, gpus: int, display: Display, fit: str = FIT) -> list[RunOutcome]:
    """Carry out all runs, ``jobs`` at once; a run that fails does not stop the others.

    Args:
        runs: the runs.
        jobs: number of worker processes; 1 without GPUs: the runs are carried out in this process, by their runtime.
        gpus: number of GPUs, which are divided among the workers; 0 on the CPU.
        display: shows progress.
        fit: dotted path of the function that carries out a ``Run``.

    Returns:
        One outcome per run, in order of completion.

    Raises:
        ConfigError: there are more workers than the machine can run.
        Stopped: ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP`` came; the runs in progress have saved the end of their last
            round.
    """
    refuse_torchrun("a command with many runs")
    with display:
        placed = pinned(runs, jobs, gpus)
        if jobs <= 1 and not gpus:
            return _run_here(placed, display, fit)
        workers = min(max(1, jobs), len(runs))
        check_processes("--jobs", workers)
        return _run_in_workers(placed, workers, gpus, display, fit)


def pinned(runs: Sequence[Run], jobs: int, gpus: int) -> list[Run]:
    """The runs as ``run_all`` carries them out: several at once have one process each.

    Their number of threads is the one asked for, the one that the run had before an interruption, or an equal share of
    the cores. With ``client_memory=auto``, each has an equal share of half of the memory that is free now.
    """
    if jobs <= 1 and not gpus:
        return list(runs)
    from datamodules.common.memory import available_bytes  # imports torch

    placed = []
    # The same however few runs are left: another number of threads would round differently.
    share = max(1, cores() // max(1, jobs))
    free = available_bytes()
    for run in runs:
        threads = run.config.runtime.threads
        if threads == "auto":
            threads = asked_threads() or kept_threads(run) or share
        memory = run.config.runtime.client_memory
        if memory == "auto" and free is not None:
            memory = round(free / 2 / max(1, min(jobs, len(runs))) / 1e9, 3)
        runtime = replace(run.config.runtime, devices=1, threads=threads, client_memory=memory)
        placed.append(run.replace(runtime=runtime))
    return placed


def attempt(run: Run, fit: Callable[[Run], Path]) -> tuple[str, str]:
    """Carry out a run and return how it ended; a failure is also recorded."""
    try:
        fit(run)
    except RunLocked as error:
        return "busy", str(error)
    except Exception as error:
        check_stopped()  # a stop matters more than what failed while saving, which has been printed
        with suppress(OSError, BenchError):  # a record that cannot be read or written stays as it is
            if state(run.folder) in ("missing", "stale"):
                RunFolder(run.folder).fail(error, run)
        return "failed", one_line(message_of(error))
    return "complete", ""


def default_jobs(runtime: Runtime) -> tuple[int, int]:
    """``(jobs, gpus)`` for ``--jobs auto``: one worker per GPU, or per core as far as memory allows."""
    import torch

    gpus = 0 if runtime.accelerator == "cpu" else torch.cuda.device_count()
    return gpus or bearable(cores()), gpus


def _run_here(runs: Sequence[Run], display: Display, fit: str) -> list[RunOutcome]:
    function = imported(fit)
    outcomes: list[RunOutcome] = []
    for run in runs:
        display.start(run)
        with display.ticking():
            status, message = attempt(run, function)
        display.finish(run, status, message)
        outcomes.append(RunOutcome(run, status, message))
    return outcomes


class _Worker:
    """A process that carries out the runs it is sent, one after another."""

    def __init__(self, number: int, gpus: int, fit: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_worker_main, args=(theirs, number, gpus, fit), name=f"worker {number}")
        self.process.start()
        theirs.close()
        self.run: Run | None = None

    def send(self, run: Run) -> None:
        self.run = run
        with suppress(BrokenPipeError):  # the process has just died, as ``result`` will say
            self.pipe.send(run)

    def result(self) -> tuple[str, str]:
        """How the present run ended, even if its process died."""
        try:
            status, message, last = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            return "failed", f"its process was {how}; run the same command again (without --overwrite) to continue"
        if last:
            self.process.join()
        return status, message


def _run_in_workers(runs: Sequence[Run], jobs: int, gpus: int, display: Display, fit: str) -> list[RunOutcome]:
    queue = list(runs)
    outcomes: list[RunOutcome] = []
    workers = [_Worker(number, gpus, fit) for number in range(jobs)]
    try:
        while len(outcomes) < len(runs):
            for n, worker in enumerate(workers):
                if worker.run is None and queue:
                    if not worker.process.is_alive():
                        workers[n] = worker = _Worker(n, gpus, fit)
                    display.start(queue[0])
                    worker.send(queue.pop(0))
            busy = {worker.pipe: worker for worker in workers if worker.run is not None}
            for pipe in wait(list(busy), timeout=POLL_S):
                worker = busy[pipe]  # type: ignore[index]
                run, (status, message) = worker.run, worker.result()
                assert run is not None
                worker.run = None
                outcomes.append(RunOutcome(run, status, message))
                display.finish(run, status, message)
            display.tick()
    except Stopped as asked:
        for worker in workers:
            worker.pipe.close()  # a worker that waits for its next run would wait forever
        stop([worker.process for worker in workers], asked.signal)
        raise
    finally:
        for worker in workers:
            worker.pipe.close()
        stop([worker.process for worker in workers], signal.SIGTERM)
    return outcomes


def _worker_main(pipe: Connection, number: int, gpus: int, fit: str) -> None:
    """Entry point of a worker: works until the pipe closes or it is stopped, and saves first; ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    try:
        with stoppable():
            _serve(pipe, number, gpus, fit)
    except Stopped:
        sys.exit(STOPPED)
    finally:
        gc.unfreeze()  # or libraries report what was frozen as leaked


def _serve(pipe: Connection, number: int, gpus: int, fit: str) -> None:
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % gpus]  # CUDA stops at the first that is not there
    function = imported(fit)

    def logged(run: Run) -> Path:
        with _output_to(run.folder / LOG):
            path: Path = function(run)
            return path

    while True:
        try:
            run: Run = pipe.recv()
        except EOFError:
            return
        gc.collect()  # of a run that failed, whose error has held it until now
        gc.freeze()  # what has been imported so far, since every run ends with a garbage collection
        status, message = attempt(run, logged)
        last = status == "failed" and _gpu_lost()
        pipe.send((status, message, last))
        if last:
            os._exit(1)  # another process takes the next run; this one may not be able to shut down properly


def _gpu_lost() -> bool:
    """Whether this process can no longer use its GPU: after some errors every further call fails."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect stdout and stderr of this process and its children to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        kept = {number: os.dup(number) for number in (1, 2)}
        for number in kept:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a full disk
                stream.flush()
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)
