"""Processes for tests, which are forks of one that has imported everything, and work that several do with gloo."""

import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing.context import BaseContext
from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.strategies import DDPStrategy

from benchmark.federation.collectives import wait_for_all


def forks() -> BaseContext:
    """Where such processes come from; a fresh one would import for longer than most tests run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["benchmark.launch.run", "benchmark.cli", "methods.fed_consist", "datamodules.digits"]
    )
    return context


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def meet(rank: int, port: int, work: Any) -> Any:
    """Run one of the processes: wait for the other, do the work, and send the result or error."""
    os.environ |= {
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        **{"NODE_RANK": "0", "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
    }
    torch.set_num_threads(1)
    patience = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=100))
    fabric = Fabric(accelerator="cpu", devices=2, strategy=patience)
    fabric.launch()
    answer = work(fabric)
    wait_for_all(fabric)
    return answer


def between_two(work: Any) -> list[Any]:
    """Return the results of ``work(fabric)`` in two processes."""
    port = free_port()
    with ProcessPoolExecutor(2, forks()) as pool:
        return [done.result() for done in [pool.submit(meet, rank, port, work) for rank in range(2)]]
