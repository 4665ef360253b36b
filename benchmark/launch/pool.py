"""Many runs on one machine, each in a process of its own: a fork of a server that has imported what runs need."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path

from benchmark.config import Run
from benchmark.launch.launchers import is_one_of_several, leave_allocation
from benchmark.launch.placement import gpus_of, pinned
from benchmark.launch.progress import POLL_S, Display
from benchmark.launch.signals import SIGNALS, STOPPED, check_stopped, die_with_parent, stoppable, stopping_children
from benchmark.registry import imported
from benchmark.runs.console import tell_downloads
from benchmark.runs.environment import check_processes
from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked
from benchmark.runs.states import state
from datamodules.common.errors import BenchError, ConfigError, Stopped, message_of, one_line

FIT = "benchmark.launch.run.fit"
IMPORTED = ("benchmark.launch.run", "benchmark.federation.loop", "sklearn.datasets")
LOG = "output.log"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: ``complete``, ``failed``, or ``busy`` (another process works on it)."""

    run: Run
    status: str
    message: str = ""


def run_all(runs: Sequence[Run], jobs: int | None = None, fit: str = FIT) -> list[RunOutcome]:
    """Carry out all runs, each in a process of its own; one that fails does not stop the others. Stderr shows progress.

    Args:
        runs: the runs.
        jobs: number of runs at once, which share the GPUs, have one process each, and write to ``output.log`` in their
            folders. With 1 and without GPUs, a run takes the devices that its runtime asks for; so it does with
            ``None``, and its output then goes where that of this process does.
        fit: dotted path of the function that carries out a ``Run``.

    Returns:
        One outcome per run, in order of completion.

    Raises:
        ConfigError: there are more processes than the machine can run, or something else has started several.
        Stopped: ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP`` came; the runs in progress have saved the end of their last
            round.
    """
    if is_one_of_several():
        raise ConfigError(
            "a command with many runs starts its own processes: start it once, without torchrun or srun, which are for "
            "one run (`fit`)"
        )
    gpus = gpus_of(runs[0].config.runtime) if jobs and runs else 0
    queue, running, free_places = list(runs), dict[int, _RunProcess](), [0]
    if jobs and (jobs > 1 or gpus):
        queue, free_places = pinned(runs, jobs), list(range(min(jobs, len(runs))))
        check_processes("--jobs", len(free_places))
    outcomes, display = list[RunOutcome](), Display(len(runs))
    with display, stopping_children():
        while queue or running:
            while queue and free_places:
                run, place = queue.pop(0), free_places.pop(0)
                display.start(run)
                log = run.folder / LOG if jobs else None
                running[place] = _RunProcess(run, fit, log, place % gpus if gpus else None)
            ended = wait([process.receiver for process in running.values()], POLL_S)
            for place, process in list(running.items()):
                if process.receiver in ended:
                    outcome = process.outcome()
                    outcomes.append(outcome)
                    display.finish(outcome.run, outcome.status, outcome.message)
                    del running[place]
                    free_places.append(place)
            display.tick()
    return outcomes


def attempt(run: Run, fit: Callable[[Run], Path], log: Path | None = None) -> tuple[str, str]:
    """Carry out a run, with its output in ``log``, and return how it ended; a failure is also recorded."""
    try:
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as file:
                for stream in (1, 2):  # of this process and its children
                    os.dup2(file.fileno(), stream)
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


def server() -> ForkServerContext:
    """The server that forks the processes of runs, started if it is not running; meanwhile it imports what runs need.

    So all runs of a command are by the code of its start, whatever is edited meanwhile. The server finds modules where
    this process does. Signals are blocked in it, and in a run until that can save: the server has to outlive its runs.
    """
    context = multiprocessing.get_context("forkserver")
    modules = [name for name in sys.modules if name.startswith(("methods.", "datamodules."))]
    context.set_forkserver_preload([*IMPORTED, *modules])
    resource_tracker.ensure_running()  # starting it would unblock SIGTERM and SIGINT
    environ, mask = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, signal.SIGINT})
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(environ)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


class _RunProcess:
    """A run in a process of its own.

    Args:
        run: the run.
        fit: dotted path of the function that carries it out.
        log: file for its output; ``None``: where this process's goes.
        gpu: the only GPU that it sees, by its place among those that this process sees; ``None``: all.
    """

    def __init__(self, run: Run, fit: str, log: Path | None, gpu: int | None) -> None:
        context = server()
        self.run = run
        self.receiver, sender = context.Pipe(duplex=False)
        args = (run, fit, log, gpu, dict(os.environ), sender)
        self.process = context.Process(target=_main, args=args, name=f"run {run.id}")
        self.process.start()
        sender.close()

    def outcome(self) -> RunOutcome:
        """How the run ended, even if its process died; waits for its end."""
        try:
            with suppress(EOFError, OSError):
                return RunOutcome(self.run, *self.receiver.recv())
        finally:
            self.process.join()
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        why = f"its process {how} before the run was complete; run the same command again (without --overwrite)"
        return RunOutcome(self.run, "failed", f"{why} to continue")


def _main(run: Run, fit: str, log: Path | None, gpu: int | None, environ: dict[str, str], sender: Connection) -> None:
    """The whole of a run's process. It ends with its parent, which passes Ctrl-C on as ``SIGTERM``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environ)
    leave_allocation()
    tell_downloads()
    if gpu is not None:
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    die_with_parent()
    try:
        with stoppable():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, signal.SIGINT})
            sender.send(attempt(run, imported(fit), log))
    except Stopped:
        sys.exit(STOPPED)
