"""Where runs take place if their configurations leave that open: accelerator, processes, threads and memory."""

from collections.abc import Sequence
from dataclasses import replace

from benchmark.config import Run, Runtime
from benchmark.launch.launchers import slurm_tasks
from benchmark.runs.environment import accelerator_here, asked_threads, bearable, cores, free_threads
from benchmark.runs.records import read_record
from benchmark.runs.states import saved_rounds
from datamodules.common.memory import available_bytes


def placed(run: Run) -> Run:
    """The run with ``auto`` for accelerator, devices and threads replaced by what this machine has.

    Devices are one process, as in Lightning on a CPU, or the tasks that SLURM has started per node. Several runs at a
    time use several GPUs.

    The number of threads is ``OMP_NUM_THREADS`` if that is set, and otherwise 1 on a GPU. On a CPU a resumed run has as
    many as before, and a new run has as many as there are idle cores, or its processes share all cores.
    """
    rt = run.config.runtime
    accelerator, threads = accelerator_here(rt.accelerator), rt.threads
    devices = rt.devices if isinstance(rt.devices, int) else max(1, slurm_tasks() // rt.num_nodes)
    if threads == "auto" and accelerator == "cpu":
        alone = devices * rt.num_nodes == 1
        threads = asked_threads() or _kept_threads(run) or (free_threads() if alone else max(1, cores() // devices))
    elif threads == "auto":
        threads = asked_threads() or 1
    return run.replace(runtime=replace(rt, accelerator=accelerator, devices=devices, threads=threads))


def pinned(runs: Sequence[Run], jobs: int) -> list[Run]:
    """The runs as ``pool.run_all`` carries them out at once: in one process each.

    Their number of threads is the one asked for, the one that the run had before an interruption, or an equal share of
    the cores. With ``client_memory=auto``, each has an equal share of a quarter of the memory that is free now.
    """
    share = max(1, cores() // jobs)  # the same however few runs are left: others would round differently
    free = available_bytes()
    placed_runs = []
    for run in runs:
        rt = run.config.runtime
        threads, memory = rt.threads, rt.client_memory
        if threads == "auto":
            threads = asked_threads() or _kept_threads(run) or share
        if memory == "auto" and free is not None:
            memory = round(free / 4 / min(jobs, len(runs)) / 1e9, 3)
        placed_runs.append(run.replace(runtime=replace(rt, devices=1, threads=threads, client_memory=memory)))
    return placed_runs


def gpus_of(runtime: Runtime) -> int:
    """Number of GPUs for runs; 0 on the CPU."""
    if runtime.accelerator == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


def default_jobs(runtime: Runtime) -> int:
    """Number of runs at once for ``--jobs auto``: one per GPU, or per core as far as memory allows."""
    return gpus_of(runtime) or bearable(cores())


def _kept_threads(run: Run) -> int | None:
    """Threads of a run that is resumed, since with another number it would round differently."""
    return read_record(run.folder)["environment"].get("threads") if saved_rounds(run.folder) else None
