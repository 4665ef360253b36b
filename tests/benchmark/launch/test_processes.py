"""Runs of several processes, whoever starts them: they are the run of one."""

import os
import sys

import pytest

from benchmark.cli import main
from benchmark.launch.run import fit
from benchmark.runs.records import read_record
from datamodules.common.errors import RunError
from runs import MIXED, SHORT, assert_same_run, configuration, interrupted
from two_processes import forks, free_port

FAILS = """
from methods.fedavg import FedAvg


class Fails(FedAvg):
    \"""One of its clients raises an error of several lines.\"""

    def select_clients(self, round, roster):
        return [list(range(6))]

    def local_work(self, site):
        if self.visit.client == 5:
            raise ValueError("two\\n  lines\\n\\nOriginal Traceback (most recent call last):\\n  x")
        return super().local_work(site)
"""


@pytest.mark.timeout(300)
def test_every_process_fails_with_the_error_of_one(tmp_path, monkeypatch, quick_processes):
    """The record has the traceback of that one, also where another process writes it."""
    (tmp_path / "fails.py").write_text(FAILS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = configuration(tmp_path, **{**SHORT, "method": "fails.Fails", "runtime__devices": 2})
    told = r"^Fails, client 5 .*, round 0: ValueError: two\n  lines\n\nOriginal Traceback .*:\n  x"
    with pytest.raises(RunError, match=told):
        fit(config)
    error = read_record(config.folder)["error"]
    assert "ValueError: two\n  lines" in error and "fails.py" in error and "Connection" not in error


@pytest.mark.timeout(300)
def test_two_processes_share_the_norm_statistics(tmp_path, quick_processes):
    """A server that trains and measures batch-norm statistics, which the processes divide among themselves."""
    small = {"depth": 10, "width": 1}
    server = {"data__scenario": "server", "data__num_labels": 20, "data__pipeline": "randaugment_uniform", "rounds": 2}
    short = {"method__local_epochs": 1, "method__server_pretrain": 0, "roster__participants": 2}
    options = {"method": "fl2", "model": "wrn28_2", "model_args": small, **server, **short}
    one, two = (fit(configuration(tmp_path / str(n), runtime__devices=n, **options)) for n in (1, 2))
    assert_same_run(two, one)


def as_one_of_two(rank, port, options, told):
    """The whole of the process on one of two nodes, with what torchrun leaves in its environment."""
    group = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
    os.environ |= {**group, **size, "RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    with open(told, "w") as sys.stdout:
        code = main(["fit", *options.split()])
    sys.exit(code)


@pytest.mark.timeout(300)
def test_torchrun_on_two_nodes_gives_the_record_of_one_process(tmp_path, reference):
    """Although it takes over from one that was interrupted. Its processes, without its launchers, which import for much
    longer than the run takes.
    """
    path = interrupted(configuration(tmp_path, **MIXED), 3)
    options = f"--config {path}/config.yaml --results_dir {tmp_path} --accelerator cpu --threads 1 --wandb off"
    port, told = free_port(), [tmp_path / f"told.{rank}" for rank in range(2)]
    processes = [forks().Process(target=as_one_of_two, args=(rank, port, options, told[rank])) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 2
    assert "".join(file.read_text() for file in told).count(str(path)) == 1, "one of the processes speaks for all"
    environment = read_record(path)["environment"]
    assert (environment["devices"], environment["num_nodes"]) == (1, 2)
    assert_same_run(path, reference)


DRIFTING = """
import torch
import torch.distributed as dist

from methods.server_only import ServerOnly


class Drifting(ServerOnly):
    \"""Its server's training rounds a little differently in every process, as on GPUs.\"""

    def server_step(self, server):
        super().server_step(server)
        with torch.no_grad():
            self.model.conv1.weight.mul_(1 + 0.5 * (dist.is_initialized() and dist.get_rank()))
"""


@pytest.mark.timeout(300)
def test_all_processes_go_on_with_the_first_ones_server(tmp_path, monkeypatch, quick_processes):
    """Where devices round differently, they would otherwise evaluate, and send out, different global models."""
    (tmp_path / "drift.py").write_text(DRIFTING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = {"method": "drift.Drifting", "data__scenario": "server", "data__num_labels": 20, "rounds": 2}
    one, two = (fit(configuration(tmp_path / str(n), runtime__devices=n, **options)) for n in (1, 2))
    assert_same_run(two, one)
