"""How much memory there is."""

import pytest

from datamodules.common import memory
from datamodules.common.memory import available_bytes

GROUP = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "3000000\n"}
MACHINE = {"proc/meminfo": "MemTotal:       8000 kB\nMemAvailable:    4000 kB\n", **GROUP}


def test_a_container_may_have_less_than_the_machine(machine):
    machine.write(**MACHINE)
    assert available_bytes() == 4_096_000
    for most, free in (("5000000\n", 2_000_000), ("1000000\n", 0)):
        machine.write(**{"sys/fs/cgroup/memory.max": most})
        assert available_bytes() == free


cgroups = pytest.mark.parametrize(
    ("group", "limit", "usage"),
    [("", "memory.max", "memory.current"), ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes")],
    ids=["version 2", "version 1"],
)


@cgroups
def test_a_job_may_have_less(machine, group, limit, usage):
    """A scheduler limits a job of a machine by a control group somewhere above the process's own."""
    number = "4:cpu,memory" if group else "0:"
    own = f"1:name=systemd:/slurm\n{number}:/slurm/job_7/step_0/task_0\n"
    machine.write(**MACHINE, **{"proc/self/cgroup": own})
    for place, most in (("slurm/job_7", "900000"), ("slurm/job_7/step_0", "max"), ("slurm/job_8", "500000")):
        folder = f"sys/fs/cgroup/{group}{place}"
        machine.write(**{f"{folder}/{limit}": f"{most}\n", f"{folder}/{usage}": "200000\n"})
    assert available_bytes() == 700_000


@cgroups
def test_files_that_a_container_has_read_do_not_fill_it(machine, group, limit, usage):
    """Their memory is given up when a program asks for it."""
    prefix = "total_" if group else ""
    parts = f"anon 500000\n{prefix}active_file 1500000\n{prefix}inactive_file 2500000\nslab 100000\n"
    folder = f"sys/fs/cgroup/{group}"
    files = {limit: "5000000", usage: "4600000", "memory.stat": parts}
    machine.write(**MACHINE | {f"{folder}{name}": text for name, text in files.items()})
    assert available_bytes() == 4_096_000  # the machine's; the container would have 4 400 000
    machine.write(**{f"{folder}{limit}": "4500000\n"})
    assert available_bytes() == 3_900_000


def test_a_system_that_does_not_say(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert available_bytes() is None
