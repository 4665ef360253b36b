"""What started the processes of a run: the run itself, ``torchrun`` or SLURM's ``srun``."""

import os

from datamodules.common.errors import ConfigError

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
ALLOCATION = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
"""Variables of SLURM from which Lightning concludes that other processes were started beside this one."""
INTERACTIVE = ("bash", "interactive")  # names of SLURM's jobs that Lightning leaves alone


def torchrun() -> tuple[int, int] | None:
    """The number of processes per node, and of nodes, if ``torchrun`` has started them; otherwise ``None``.

    Raises:
        ConfigError: the variables that it sets are not whole, as where one of them is left over from elsewhere.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # as Lightning's TorchElasticEnvironment detects it
        return None
    local, world = _number("LOCAL_WORLD_SIZE", "torchrun"), _number("WORLD_SIZE", "torchrun")
    return local, world // local


def slurm_tasks() -> int:
    """Number of processes that ``srun`` has started for this run, including this one; 0 without SLURM.

    Raises:
        ConfigError: ``SLURM_NTASKS`` is no number, or the allocation has several tasks and ``srun`` has not started
            this process: it would wait for the others for ever.
    """
    tasks = _allocated()
    if tasks > 1 and "SLURM_STEP_NUM_TASKS" not in os.environ:
        raise ConfigError(
            f"the SLURM allocation has {tasks} tasks, but srun has not started this process: start it with srun, or "
            "ask for one task (--ntasks=1) with several CPUs or GPUs"
        )
    return tasks


def leave_allocation() -> None:
    """Forget the tasks of the allocation: a command with many runs starts their processes itself."""
    for name in ALLOCATION:
        os.environ.pop(name, None)


def check_left_over() -> None:
    """Refuse what Lightning reads when it is imported or launches, and that no launcher we support has set.

    Raises:
        ConfigError: a rank is no number, or not 0 without a launcher.
    """
    started = torchrun() or _allocated()
    for name in RANKS:
        if name in os.environ and _number(name, "a launcher of processes", least=0) and not started:
            raise ConfigError(
                f"{name}={os.environ[name]} is left in the environment, but neither torchrun nor srun has started this "
                "process: unset it, or the program takes itself for one of several and prints nothing"
            )


def is_one_of_several() -> bool:
    """Whether something else has started this process and others beside it."""
    several = torchrun() not in (None, (1, 1))
    return ("SLURM_STEP_NUM_TASKS" in os.environ and _allocated() > 1) or several


def _allocated() -> int:
    """Number of tasks of the SLURM allocation, if Lightning detects one; 0 otherwise."""
    if "SLURM_NTASKS" not in os.environ or os.environ.get("SLURM_JOB_NAME") in INTERACTIVE:
        return 0
    return _number("SLURM_NTASKS", "SLURM")


def _number(name: str, launcher: str, least: int = 1) -> int:
    given = os.environ.get(name, "")
    if not (given.isdecimal() and int(given) >= least):
        raise ConfigError(
            f"the environment looks like that of {launcher}, but {name} is {given!r}: start the command with "
            f"{launcher}, or unset the variables that {launcher} has left"
        )
    return int(given)
