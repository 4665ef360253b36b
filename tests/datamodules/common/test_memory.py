"""How much memory there is."""

import pytest

from datamodules.common import system
from datamodules.common.memory import available_bytes


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "ROOT", tmp_path)
    for name, text in {
        "proc/meminfo": "MemTotal:       8000 kB\nMemAvailable:    4000 kB\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "3000000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_container_may_have_less_than_the_machine(machine):
    assert available_bytes() == 4_096_000
    (machine / "sys/fs/cgroup/memory.max").write_text("5000000\n")
    assert available_bytes() == 2_000_000
    (machine / "sys/fs/cgroup/memory.max").write_text("1000000\n")
    assert available_bytes() == 0


cgroups = pytest.mark.parametrize(
    ("group", "limit", "usage"),
    [("", "memory.max", "memory.current"), ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes")],
    ids=["version 2", "version 1"],
)


@cgroups
def test_a_job_may_have_less(machine, group, limit, usage):
    """A scheduler limits a job of a machine by a control group somewhere above the process's own."""
    (machine / "proc/self").mkdir()
    number = "4:cpu,memory" if group else "0:"
    (machine / "proc/self/cgroup").write_text(f"1:name=systemd:/slurm\n{number}:/slurm/job_7/step_0/task_0\n")
    for place, most in (("slurm/job_7", "900000"), ("slurm/job_7/step_0", "max"), ("slurm/job_8", "500000")):
        folder = machine / "sys/fs/cgroup" / group / place
        folder.mkdir(parents=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text("200000\n")
    assert available_bytes() == 700_000


@cgroups
def test_files_that_a_container_has_read_do_not_fill_it(machine, group, limit, usage):
    """Their memory is given up when a program asks for it."""
    prefix = "total_" if group else ""
    parts = f"anon 500000\n{prefix}active_file 1500000\n{prefix}inactive_file 2500000\nslab 100000\n"
    folder = machine / "sys/fs/cgroup" / group
    folder.mkdir(exist_ok=True)
    for name, text in {limit: "5000000", usage: "4600000", "memory.stat": parts}.items():
        (folder / name).write_text(text)
    assert available_bytes() == 4_096_000  # the machine's; the container would have 4 400 000
    (folder / limit).write_text("4500000\n")
    assert available_bytes() == 3_900_000


def test_a_system_that_does_not_say(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "ROOT", tmp_path)
    assert available_bytes() is None
