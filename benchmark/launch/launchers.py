"""Who has started the processes of a run: the run itself, or ``torchrun``, ``fabric run`` or SLURM before it."""

import os
from dataclasses import replace
from typing import NamedTuple

from benchmark.config import Runtime
from datamodules.common.errors import ConfigError


class Torchrun(NamedTuple):
    """What ``torchrun`` has started: processes on each node, and nodes."""

    local: int
    nodes: int


def torchrun() -> Torchrun | None:
    """The processes of which this is one; ``None`` if ``torchrun`` has not started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # as Lightning's TorchElasticEnvironment detects it
        return None
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return Torchrun(local, int(os.environ["WORLD_SIZE"]) // local)


def slurm_tasks() -> int:
    """Processes that SLURM has started for this run, this one among them; 0 without SLURM."""
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment  # imports torch

    return int(os.environ["SLURM_NTASKS"]) if SLURMEnvironment.detect() else 0


def within(runtime: Runtime, started: Torchrun) -> Runtime:
    """The runtime with as many devices and nodes as ``torchrun`` has started processes for.

    Raises:
        ConfigError: others are asked for; says how to start them.
    """
    asked = started.local if runtime.devices == "auto" else runtime.devices
    nodes = started.nodes if runtime.num_nodes == 1 else runtime.num_nodes
    if (asked, nodes) != started:
        raise ConfigError(
            f"--devices {asked} --num_nodes {nodes}, but torchrun has started {started.local} processes on each of "
            f"{started.nodes} nodes: start it with --nproc_per_node {asked} --nnodes {nodes}, or leave --devices and "
            "--num_nodes out"
        )
    return replace(runtime, devices=asked, num_nodes=nodes)


def refuse_torchrun(command: str) -> None:
    """Refuse to be one of several processes, for a command that starts its own.

    Raises:
        ConfigError: ``torchrun`` has started several.
    """
    started = torchrun()
    if started and started.local * started.nodes > 1:
        raise ConfigError(
            f"{command} starts its own processes: start it without torchrun, which is for one run (`fit`)"
        )
