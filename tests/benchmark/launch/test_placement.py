"""Where runs take place."""

import os
from dataclasses import replace

import numpy as np
import torch

from benchmark.launch.placement import placed
from benchmark.runs.environment import PROCESS_BYTES
from runs import SHORT, configuration, interrupted


def test_auto_places_long_runs_on_all_cores(tmp_path, machine, monkeypatch):
    """One process per core, up to one per participant, for what is worth it; one process otherwise."""
    machine.cores = 8
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    auto = {"runtime__devices": "auto", "runtime__threads": "auto", "runtime__accelerator": "auto"}

    def where(**options):
        runtime = placed(configuration(tmp_path, method="fedavg", **{**auto, **options})).config.runtime
        assert runtime.accelerator == "cpu"
        return runtime.devices, runtime.threads

    assert where(rounds=10) == (1, 8)
    assert where(rounds=4_000) == (6, 1)
    assert where(rounds=4_000, roster__participants=2) == (1, 8)
    assert where(rounds=10_000, roster__participants=2) == (2, 4)
    assert where(rounds=10_000, runtime__devices=3) == (3, 2)
    assert where(rounds=10, runtime__threads=5) == (1, 5)
    assert where(rounds=4_000, model="wrn28_2") == (1, 8)
    assert where(rounds=4_000, model="wrn28_2", model_args__depth=10) == (6, 1)
    assert where(rounds=4_000, data__side=224) == (1, 8)
    assert where(rounds=4_000, data__side=224, model="vit_tiny_scratch") == (1, 8)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    machine.write(proc__loadavg="6.00 6.00 6.00 7/100 4711")
    assert where(rounds=10) == (1, 2) and where(rounds=4_000) == (6, 1), "other programs run on six of them"


def test_an_own_data_set_counts_with_its_size(tmp_path, machine):
    """Of 600 images 1 000 rounds are short; one that is not there yet counts as one of the usual size."""
    machine.cores = 8
    auto = {"method": "fedavg", "data": "npz", "data__file": str(tmp_path / "x.npz"), "runtime__devices": "auto"}
    runs = [configuration(tmp_path, rounds=rounds, **auto) for rounds in (2, 1_000)]
    assert [placed(run).config.runtime.devices for run in runs] == [1, 6]
    np.savez(tmp_path / "x.npz", train_images=np.zeros((600, 8, 8), np.uint8), train_labels=np.arange(600) % 3)
    assert [placed(run).config.runtime.devices for run in runs] == [1, 1]


def test_auto_starts_no_more_processes_than_there_is_memory_for(tmp_path, machine):
    config = configuration(tmp_path, rounds=4_000, data__num_clients=64, method="fedavg", runtime__devices="auto")
    machine.cores = 64
    assert placed(config).config.runtime.devices == 64
    for free, expected in ((PROCESS_BYTES * 5, 5), (1, 1)):
        machine.write(proc__meminfo=f"MemAvailable: {-(-free // 1024)} kB\n")
        assert placed(config).config.runtime.devices == expected


def test_threads_are_those_asked_for_or_as_many_as_before_or_a_share_of_the_cores(tmp_path, machine, monkeypatch):
    machine.cores = 8
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = configuration(tmp_path, **{**SHORT, "runtime__threads": "auto"})
    several = config.replace(runtime=replace(config.config.runtime, devices=2))
    asked = config.replace(runtime=replace(config.config.runtime, threads=5))
    nodes = config.replace(runtime=replace(config.config.runtime, devices=1, num_nodes=2))
    assert [placed(one).config.runtime.threads for one in (config, several, nodes, asked)] == [8, 4, 8, 5]
    interrupted(config.replace(runtime=replace(config.config.runtime, threads=2)), 1)
    assert [placed(one).config.runtime.threads for one in (config, several, asked)] == [2, 2, 5]
    monkeypatch.setenv("OMP_NUM_THREADS", "6,1")
    assert [placed(one).config.runtime.threads for one in (config, several, asked)] == [6, 6, 5]


def test_auto_takes_the_tasks_that_slurm_has_started(tmp_path, machine, monkeypatch):
    """Not more, however large the run; in an interactive job there is nothing but the machine."""
    machine.cores = 8
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    auto = {"method": "fedavg", "runtime__devices": "auto", "runtime__threads": "auto", "rounds": 4_000}
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    for tasks, nodes, expected in ((1, 1, (1, 8)), (4, 1, (4, 2)), (4, 2, (2, 4)), (1, 2, (1, 8))):
        monkeypatch.setenv("SLURM_NTASKS", str(tasks))
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(tasks))
        runtime = placed(configuration(tmp_path, runtime__num_nodes=nodes, **auto)).config.runtime
        assert (runtime.devices, runtime.threads) == expected
    assert placed(configuration(tmp_path, **{**auto, "runtime__devices": 3})).config.runtime.devices == 3
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert placed(configuration(tmp_path, **auto)).config.runtime.devices == 6
