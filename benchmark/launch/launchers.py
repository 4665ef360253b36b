"""What started the processes of a run: the run itself, ``torchrun`` or SLURM."""

import os
from typing import NamedTuple

from datamodules.common.errors import ConfigError

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")


class Torchrun(NamedTuple):
    """What ``torchrun`` has started: the number of processes per node, and of nodes."""

    local: int
    nodes: int


def torchrun() -> Torchrun | None:
    """The processes of this run, if ``torchrun`` has started them; otherwise ``None``.

    Raises:
        ConfigError: the variables that it sets are not whole, as where one of them is left over from elsewhere.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # as Lightning's TorchElasticEnvironment detects it
        return None
    local, world = _number("LOCAL_WORLD_SIZE", "torchrun"), _number("WORLD_SIZE", "torchrun")
    return Torchrun(local, world // local)


def slurm_tasks() -> int:
    """Number of processes that SLURM has started for this run, including this one; 0 without SLURM.

    Raises:
        ConfigError: ``SLURM_NTASKS`` is not a number.
    """
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment  # imports torch

    return _number("SLURM_NTASKS", "SLURM") if SLURMEnvironment.detect() else 0


def check_left_over() -> None:
    """Refuse what Lightning reads when it is imported or launches, and no launcher of ours can have set.

    Raises:
        ConfigError: a rank is no number, or ``fabric run`` has started this process.
    """
    for name in RANKS:
        if name in os.environ:
            _number(name, "a launcher of processes", least=0)
    if os.environ.get("LT_CLI_USED") == "1":
        raise ConfigError(
            "the environment looks like that of `fabric run` (LT_CLI_USED=1): start several processes with --devices "
            "or torchrun, or unset the variable"
        )


def is_one_of_several() -> bool:
    """Whether something else has started this process and others beside it for the same run."""
    return bool(torchrun()) or slurm_tasks() > 1


def _number(name: str, launcher: str, least: int = 1) -> int:
    given = os.environ.get(name, "")
    if not (given.isdecimal() and int(given) >= least):
        raise ConfigError(
            f"the environment looks like that of {launcher}, but {name} is {given!r}: start the command with "
            f"{launcher}, or unset the variables that {launcher} has left"
        )
    return int(given)


def refuse_torchrun(command: str) -> None:
    """Refuse several processes of ``torchrun`` for a command that starts its own.

    Raises:
        ConfigError: ``torchrun`` has started several.
    """
    started = torchrun()
    if started and started.local * started.nodes > 1:
        raise ConfigError(
            f"{command} starts its own processes: start it without torchrun, which is for one run (`fit`)"
        )
