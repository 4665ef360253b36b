"""Where a run takes place if its configuration leaves that open: accelerator, processes and threads."""

from dataclasses import replace

from benchmark.config import Run
from benchmark.launch.launchers import slurm_tasks
from benchmark.registry import build
from benchmark.runs.environment import asked_threads, bearable, cores, free_threads
from benchmark.runs.records import read_record
from benchmark.runs.states import saved_rounds
from datamodules.base import FSSLDataModule
from datamodules.common.errors import BenchError, ConfigError
from methods import models

WORTH_PROCESSES = 2_000_000  # images a run trains on in total; below, starting processes does not pay
WORTH_THREADS = 1_000_000  # parameters; networks from this size on are as fast with threads


def placed(run: Run) -> Run:
    """The run with ``auto`` in its runtime replaced by what is fastest on this machine.

    On the CPU, small networks are fastest with one single-threaded process per core, up to one per participant.
    Networks of a million parameters or more are as fast with threads (`docs/performance.md`), which hold clients'
    states only once. For a run of a few seconds, starting processes does not pay. On GPUs a run has one process;
    several runs at a time use the other GPUs. Under SLURM the processes are the tasks that it has started.

    The number of threads is ``OMP_NUM_THREADS`` if that is set. Otherwise a resumed run has as many as before, and a
    new run has as many as there are idle cores, or its processes share all cores.

    Raises:
        ConfigError: ``devices`` is not a number of processes.
    """
    import torch

    config, rt = run.config, run.config.runtime
    accelerator = rt.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    devices, threads = rt.devices, rt.threads
    if devices == "auto" and (tasks := slurm_tasks()):
        devices = max(1, tasks // rt.num_nodes)
    if devices == "auto":
        args = config.data.init_args
        active = config.roster.get("participants") or args["num_clients"]
        total = max(args["num_clients"], 1)
        devices = 1
        if accelerator == "cpu":
            work = config.rounds * _expected_size(run) * active / total
            if work >= WORTH_PROCESSES and _is_small(run):
                devices = bearable(min(cores(), active))
    if not isinstance(devices, int) or devices < 1:
        raise ConfigError(f"devices={devices}: give a number of processes from 1, or auto")
    if threads == "auto":
        known = asked_threads() or (kept_threads(run) if accelerator == "cpu" else 1)
        threads = known or (free_threads() if devices * rt.num_nodes == 1 else max(1, cores() // devices))
    return run.replace(runtime=replace(rt, accelerator=accelerator, devices=devices, threads=threads))


def kept_threads(run: Run) -> int | None:
    """Threads of a run that is resumed, since with another number it would round differently."""
    if not saved_rounds(run.folder):
        return None
    before = read_record(run.folder)["environment"].get("threads")
    return before if isinstance(before, int) else None


def _expected_size(run: Run) -> int:
    """Training images of a run, as far as its data module knows before it reads them."""
    data, runtime = run.config.data, run.config.runtime
    try:
        return int(build(data, "data", data_dir=runtime.data_dir, run_seed=run.config.seed).expected_size())
    except BenchError:  # the run itself will report it
        return FSSLDataModule.train_size


def _is_small(run: Run) -> bool:
    config, cls = run.config, run.class_of("data")
    shape = {"image_size": config.data.init_args.get("side") or getattr(cls, "image_size", 32)}
    try:
        parameters = models.num_parameters(config.model, getattr(cls, "num_classes", 10), **(shape | config.model_args))
        return parameters < WORTH_THREADS
    except ConfigError:  # not a network for images; those for feature vectors are small
        return True
