"""One run, from its configuration to its record: ``fit``."""

import gc
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import dropwhile
from pathlib import Path
from signal import SIGTERM

import torch
from lightning import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.multiprocessing.spawn import ProcessException

from benchmark.config import Run
from benchmark.federation.assembly import check_values
from benchmark.launch.launchers import is_one_of_several, slurm_tasks, torchrun
from benchmark.launch.placement import placed
from benchmark.launch.recorder import is_complete
from benchmark.launch.signals import STOPPED, ended_by_signals, stoppable, stopping_children
from benchmark.launch.worker import enough_queues, worker_main
from benchmark.runs import loggers
from benchmark.runs.environment import check_processes
from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked
from benchmark.runs.states import state
from datamodules.common.errors import ConfigError, RunError, Stopped, one_line

OURS = ("datamodules.common.errors.", "benchmark.runs.lock.")  # modules of errors whose message says it all
PATIENCE = timedelta(days=7)  # for which processes wait for the slowest of a round


def fit(run: Run) -> Path:
    """Carry a run out, or finish it, and return its folder.

    A complete run is left alone; an interrupted one continues from its last checkpoint and ends with the record of
    an uninterrupted run, bit for bit on the CPU (wall-clock fields aside).

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data or the partition cannot be made.
        RunError: the run cannot go on, or another process is working on it.
        Stopped: ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP`` came; the run has saved the end of its last round.
    """
    with stoppable():
        if is_one_of_several() or not is_complete(run):  # several ask together, once they have met
            _carry_out(run)
        return run.folder


def check(run: Run) -> None:
    """Refuse a run that could not start here; nothing is written but what its data need.

    Raises:
        ConfigError: ``runtime`` asks for what is not there, or a value is wrong.
        DataError: the data are missing, or the partition cannot be made.
    """
    _fabric(*_launchable(run))
    check_values(run)


def _carry_out(run: Run) -> None:
    """This process starts those of the run, is one of those of SLURM or ``torchrun``, or is the only one."""
    run, spawned = _launchable(run)
    fabric = _fabric(run, spawned)
    if spawned and run.config.runtime.accelerator == "cpu":  # fail early if data are missing
        run.make_data().prepare_data()
    _launch(fabric, run, spawned)
    if spawned and state(run.folder) != "complete":
        raise RunError(f"{run.folder}: its processes ended without an error, but the run is not complete; run it again")


def _launchable(run: Run) -> tuple[Run, bool]:
    """The run with its devices chosen, and whether this process is to start those of the run.

    Raises:
        ConfigError: these processes are not those that the run asks for, or cannot be started here.
    """
    loggers.callbacks(run.config.runtime.callbacks)
    started, tasks = torchrun(), slurm_tasks()
    if started:
        devices, nodes = started
        run = run.replace(runtime=replace(run.config.runtime, devices=devices, num_nodes=nodes))
    run = placed(run)
    rt = run.config.runtime
    asked = int(rt.devices) * rt.num_nodes
    spawned = asked != 1 and not (tasks or started)
    if tasks and not started and asked not in (1, tasks):
        raise ConfigError(
            f"{rt.devices} devices on {rt.num_nodes} nodes are asked for, but SLURM started {tasks} tasks; "
            "give one task per device (--ntasks-per-node), or --devices 1 in a single task"
        )
    if spawned and rt.num_nodes != 1:
        raise ConfigError(
            f"{rt.num_nodes} nodes are asked for, but nothing has started this process on each of them; start it with "
            "SLURM's srun, or on every node with torchrun (docs/usage/cluster.md)"
        )
    if spawned and rt.accelerator == "cpu":
        check_processes("--devices", int(rt.devices))
    return run, spawned


def _fabric(run: Run, spawned: bool) -> Fabric:
    """Fabric for the run's processes, which it starts itself if they are ``spawned``."""
    rt = run.config.runtime
    own_loggers = loggers.lightning_loggers(rt.logger, run.folder)
    enough_queues()
    # Messages of plain values go over gloo on GPUs, too: it notices a process that has ended, and lets signals through.
    several = DDPStrategy(
        start_method="spawn" if spawned else "popen",
        process_group_backend="cpu:gloo,cuda:nccl" if rt.accelerator == "cuda" else None,
        timeout=PATIENCE,
    )
    try:
        return Fabric(
            accelerator=rt.accelerator,
            strategy="auto" if rt.devices == 1 and rt.num_nodes == 1 else several,
            devices=rt.devices,
            num_nodes=rt.num_nodes,
            loggers=own_loggers,
            precision=run.config.precision,  # type: ignore[arg-type]
        )
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as refused:
        raise ConfigError(f"--devices {rt.devices} --accelerator {rt.accelerator}: {one_line(refused)}") from None


def _launch(fabric: Fabric, run: Run, spawned: bool) -> None:
    """Let all processes work; tell and record the error that one of them dies of, and pass signals on to them."""
    path = run.folder
    try:
        if spawned:
            with stopping_children():
                fabric.launch(partial(worker_main, run=run))
        else:
            with ended_by_signals():
                fabric.launch()
            worker_main(fabric, run)
    except ProcessException as exception:
        if getattr(exception, "exit_code", None) == STOPPED:
            raise Stopped(SIGTERM) from None
        error = _raised(exception, path)
        error.__cause__ = exception  # has the traceback, which the record shall have, too
        if state(path) in ("stale", "failed") and not isinstance(error, RunLocked):
            RunFolder(path).fail(error, run)
        raise error from exception
    finally:
        gc.collect()  # the federation and its data set refer to each other
        with suppress(RuntimeError):  # of a GPU that the error at hand has left unusable
            torch.cuda.empty_cache()


def _raised(exception: ProcessException, path: Path) -> RunError:
    """What a process of the run died of; an error of ours keeps its message."""
    traceback = str(exception).strip().rpartition("\nTraceback (most recent call last):\n")[2]
    last = "\n".join(dropwhile(lambda line: line.startswith(" "), traceback.splitlines()))  # what follows the frames
    name, _, message = last.partition(": ")
    if name.startswith(OURS):
        return RunLocked(message) if name.endswith(".RunLocked") else RunError(message)
    return RunError(f"{path}: {last}; the same command (without --overwrite) continues from the last checkpoint")
