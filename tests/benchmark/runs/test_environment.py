"""What is said of the machine: what its processor can do, the hardware of a run, threads, and cores."""

import os

import pytest

from benchmark.runs.environment import cores, cpu_model, cpu_share, hardware, idle_cores


@pytest.mark.parametrize("text", ["model name\t: Some CPU 3 \nmodel name\t: B\n", "nothing is known\n"])
def test_the_processor_is_called_as_the_system_calls_it(machine, text):
    machine.write(proc__cpuinfo=text)
    assert (cpu_model() == "Some CPU 3") == ("model" in text) and cpu_model()


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"threads": 2}, "Some CPU, 2 of 8 cores per run"),
        ({"threads": 2, "devices": 3}, "Some CPU, 6 of 8 cores per run"),
        ({"threads": 1, "devices": 2, "gpu": "Some GPU", "accelerator": "cuda"}, "2 x Some GPU"),
    ],
)
def test_the_hardware_of_a_run_counts_all_of_its_processes(run, told):
    assert hardware({"cpu": "Some CPU", "cores": 8, "gpu": None, "accelerator": "cpu"} | run) == told


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({"cpu.max": "400000 100000\n"}, 4.0),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_container_has_time_on_fewer_cores(machine, files, share):
    machine.cores = 3
    machine.write(**{f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_share() == share
    assert cores() == min(3, int(share or 3))


def test_idle_cores_are_those_that_nothing_runs_on(machine, monkeypatch):
    machine.cores = 6
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert idle_cores() == 6
    for running, idle in ((1, 6), (4, 5), (8, 1), (40, 1)):
        machine.write(proc__loadavg=f"0.00 0.00 0.00 {running}/100 4711\n")
        assert idle_cores() == idle
