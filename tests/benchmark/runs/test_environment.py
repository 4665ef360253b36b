"""What is said of the machine: its processor, the hardware of a run, and cores."""

import pytest

from benchmark.runs.environment import cores, cpu_model, cpu_share, hardware


@pytest.mark.parametrize("text", ["model name\t: Some CPU 3 \nmodel name\t: B\n", "nothing is known\n"])
def test_the_processor_is_called_as_the_system_calls_it(machine, text):
    machine.write(proc__cpuinfo=text)
    assert (cpu_model() == "Some CPU 3") == ("model" in text) and cpu_model()


def test_the_hardware_of_a_run_counts_all_of_its_processes():
    machine = {"cpu": "Some CPU", "cores": 8, "gpu": None, "accelerator": "cpu", "threads": 2}
    assert hardware(machine) == "Some CPU, 2 of 8 cores per run"
    assert hardware(machine | {"devices": 3}) == "Some CPU, 6 of 8 cores per run"
    assert hardware(machine | {"devices": 3, "num_nodes": 2}) == "Some CPU, 12 of 16 cores per run"
    assert hardware(machine | {"devices": 2, "gpu": "Some GPU", "accelerator": "cuda"}) == "2 x Some GPU"


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({"cpu.max": "400000 100000\n"}, 4.0),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_a_container_has_time_on_fewer_cores(machine, files, share):
    machine.cores = 3
    machine.write(**{f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_share() == share
    assert cores() == min(3, int(share or 3))
