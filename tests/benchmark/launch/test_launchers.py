"""Who has started the processes of a run."""

import os
import signal
import socket
import time

import pytest

from benchmark.cli import main
from benchmark.launch import launchers
from benchmark.launch.pool import run_all
from datamodules.common.errors import ConfigError
from two_processes import forks, free_port

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
SRUN = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_NAME": "train"}


@pytest.mark.parametrize(("launcher", "started"), [(TORCHRUN, ((2, 2), 0)), (SRUN, (None, 4))])
def test_processes_that_a_launcher_has_started_are_for_one_run(monkeypatch, launcher, started):
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    launchers.check_left_over()
    assert launchers.is_one_of_several()
    assert (launchers.torchrun(), launchers.slurm_tasks()) == started
    with pytest.raises(ConfigError, match="starts its own processes"):
        run_all([])


def test_an_allocation_of_several_tasks_is_refused_without_srun(monkeypatch):
    """The first of its processes would wait for the others for ever."""
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_NAME"):
        monkeypatch.setenv(name, {**SRUN, "SLURM_PROCID": "0"}[name])
    launchers.check_left_over()
    with pytest.raises(ConfigError, match="4 tasks, but srun has not started this process"):
        launchers.slurm_tasks()
    launchers.leave_allocation()
    assert launchers.slurm_tasks() == 0


@pytest.mark.parametrize("name", ["LOCAL_RANK", "RANK", "SLURM_PROCID"])
def test_a_rank_that_is_left_over_is_refused(monkeypatch, name):
    """The program would print nothing and end with 0."""
    monkeypatch.setenv(name, "0")
    launchers.check_left_over()
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name}=1 is left in the environment"):
        launchers.check_left_over()


def first_of_four(port, results):
    """A command in the first of the processes that srun starts, without the others."""
    first = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS_PER_NODE": "4"}
    os.environ |= {**SRUN, **first, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main(["fit", "--method", "fedavg", "--data", "digits", "--accelerator", "cpu", "--results_dir", results])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_waits_for_others_can_be_stopped(tmp_path, number):
    """The wait is one call that does not return to Python, so that no handler is called in it."""
    port = free_port()
    process = forks().Process(target=first_of_four, args=(port, str(tmp_path)), daemon=True)
    process.start()
    with socket.socket() as there:
        while there.connect_ex(("127.0.0.1", port)) and process.is_alive():
            time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, number)
    process.join(20)
    assert process.exitcode == -number
