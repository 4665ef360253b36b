"""One run, from its configuration to its record: ``fit``. Also the script that ``fabric run`` launches."""

import gc
import os
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import dropwhile
from pathlib import Path
from signal import SIGTERM

import torch
from lightning import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.multiprocessing.spawn import ProcessException

from benchmark.config import RunConfig, folder, resolve
from benchmark.federation.assembly import make_data
from benchmark.federation.scaling import fabric_precision
from benchmark.launch.launchers import slurm_tasks, torchrun, within
from benchmark.launch.placement import placed
from benchmark.launch.queues import enough_queues
from benchmark.launch.signals import STOPPED, children, stop, stoppable
from benchmark.launch.worker import is_complete, work
from benchmark.registry import imported, one_line
from benchmark.runs import loggers
from benchmark.runs.environment import check_processes
from benchmark.runs.lock import RunLocked
from benchmark.runs.records import RunFolder, state
from datamodules.common.errors import BenchError, ConfigError, DataError, RunError, Stopped

PATIENCE = timedelta(days=7)  # processes wait for the slowest of a round, however long it takes


def fit(config: RunConfig) -> Path:
    """Run (or finish) what ``config`` describes and return the run's folder.

    A complete run is left alone; an interrupted one continues from its last checkpoint and ends with the record of
    an uninterrupted run, bit for bit on the CPU (wall-clock fields aside).

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data or the partition cannot be made.
        RunError: the run cannot go on, or another process is working on it.
        Stopped: ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP`` came; the run has saved the end of its last round.
    """
    return fit_resolved(resolve(config))


def fit_resolved(config: RunConfig) -> Path:
    """``fit`` for a configuration that is resolved already."""
    with stoppable():
        if os.environ.get("LT_CLI_USED") == "1":
            return _fit_within_fabric_run(config)
        return _fit(config)


def _fit_within_fabric_run(config: RunConfig) -> Path:
    """This process is one of those that ``fabric run`` has made already."""
    config = replace(config, precision=os.environ.get("LT_PRECISION", config.precision))
    if not is_complete(config):
        lightning = loggers.lightning_loggers(config.runtime.logger, folder(config))
        fabric = Fabric(precision=config.precision, loggers=lightning)  # type: ignore[arg-type]
        if config.precision == "16-mixed" and fabric.device.type == "cpu":
            raise ConfigError("fabric run takes bfloat16 for 16-mixed on a CPU; use bf16-mixed, or fit without it")
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes, kind = fabric.world_size // local, fabric.device.type
        config = replace(config, runtime=replace(config.runtime, accelerator=kind, devices=local, num_nodes=nodes))
        work(fabric, pickle.dumps(replace(config, runtime=placed(config))))
    return folder(config)


def _fit(config: RunConfig) -> Path:
    """This process starts those of the run, or is one of those that SLURM or ``torchrun`` has started."""
    path = folder(config)
    if is_complete(config):
        return path
    started = torchrun()
    if started:
        config = replace(config, runtime=within(config.runtime, started))
    config = replace(config, runtime=placed(config))
    rt, tasks = config.runtime, slurm_tasks()
    spawned = (rt.devices != 1 or rt.num_nodes != 1) and not (tasks or started)
    if tasks and not started:
        _check_tasks(config, tasks)
    if spawned:
        _check_spawned(config)
    fabric = _fabric(config, spawned)
    if spawned and rt.accelerator == "cpu":  # what is missing is missed before processes start
        make_data(config).prepare_data()
    _launch(fabric, config)
    if not (tasks or started) and state(path) != "complete":
        raise RunError(f"{path}: its processes ended without an error, but the run is not complete; run it again")
    return path


def _check_tasks(config: RunConfig, tasks: int) -> None:
    """Refuse a run of several processes where SLURM has started another number of them."""
    rt = config.runtime
    asked = int(rt.devices) * rt.num_nodes
    if asked not in (1, tasks):
        raise ConfigError(
            f"{rt.devices} devices on {rt.num_nodes} nodes are asked for, but SLURM started {tasks} tasks; "
            "give one task per device (--ntasks), or --devices 1"
        )


def _check_spawned(config: RunConfig) -> None:
    """Refuse processes that this one cannot start: on other nodes, or more than the machine can bear."""
    rt = config.runtime
    if rt.num_nodes != 1:
        raise ConfigError(
            f"{rt.num_nodes} nodes are asked for, but nothing has started this process on each of them; start it with "
            "SLURM's srun, or on every node with torchrun (docs/usage.md)"
        )
    if rt.accelerator == "cpu":
        check_processes("--devices", int(rt.devices))


def _fabric(config: RunConfig, spawned: bool) -> Fabric:
    """Fabric for the run's processes, which it starts itself if they are ``spawned``."""
    rt = config.runtime
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
            loggers=loggers.lightning_loggers(rt.logger, folder(config)),
            **fabric_precision(config.precision, rt.accelerator),
        )
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as refused:
        raise ConfigError(f"--devices {rt.devices} --accelerator {rt.accelerator}: {one_line(refused)}") from None


def _launch(fabric: Fabric, config: RunConfig) -> None:
    """Let all processes work; tell and record the error that one of them dies of, and pass signals on to them."""
    path, before = folder(config), children()
    try:
        fabric.launch(work, pickle.dumps(config))  # type: ignore[arg-type]
    except ProcessException as exception:
        if getattr(exception, "exit_code", None) == STOPPED:
            raise Stopped(SIGTERM) from None
        error = _raised(exception, path)
        error.__cause__ = exception  # has the traceback, which the record shall have, too
        if isinstance(error, (ConfigError, DataError)):
            RunFolder(path).forget()
        if not isinstance(error, RunLocked) and state(path) in ("stale", "failed"):
            RunFolder(path).fail(error, config)
        raise error from exception
    except (KeyboardInterrupt, Stopped) as asked:
        stop(children() - before, asked.signal if isinstance(asked, Stopped) else SIGTERM)
        raise
    finally:
        gc.collect()  # the federation and its data set refer to each other
        with suppress(RuntimeError):  # of a GPU that the error at hand has left unusable
            torch.cuda.empty_cache()


def _raised(exception: ProcessException, path: Path) -> BenchError:
    """What a process of the run died of; an error of ours keeps its class and message."""
    traceback = str(exception).strip().rpartition("\nTraceback (most recent call last):\n")[2]
    last = "\n".join(dropwhile(lambda line: line.startswith(" "), traceback.splitlines()))  # what follows the frames
    name, _, message = last.partition(": ")
    try:
        cls = imported(name)
    except (ImportError, AttributeError, ValueError):
        cls = None
    if isinstance(cls, type) and issubclass(cls, BenchError):
        return cls(message)
    return RunError(f"{path}: {last}; the same command continues from the last checkpoint")


if __name__ == "__main__":
    from benchmark.cli import main

    sys.exit(main(["fit", *sys.argv[1:]]))
