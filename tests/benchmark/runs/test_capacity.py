"""What is asked of the machine: threads, and the cores that it has and that are idle."""

import os
import time

import pytest

from benchmark.runs.capacity import asked_threads, cores, cpu_share, idle_cores, others


@pytest.mark.parametrize(
    ("value", "threads"), [("3", 3), ("4,2", 4), ("", None), ("0", None), ("many", None), (None, None)]
)
def test_threads_that_openmp_is_asked_for(monkeypatch, value, threads):
    if value is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert asked_threads() == threads


@pytest.mark.parametrize(
    ("number", "busy", "idle"), [(8, 0.0, 8), (8, 0.05, 8), (8, 0.2, 6), (8, 1.0, 1), (2, 0.2, 2), (2, 0.3, 1)]
)
def test_idle_cores_are_those_that_nobody_else_uses(machine, number, busy, idle):
    """``busy``: share of all cores; up to half a core counts as nothing."""
    machine.cores = number
    with machine.beside_others(busy):
        assert idle_cores() == idle


@pytest.mark.parametrize(("busy", "own", "used"), [(0.75, 3.0, 0.0), (0.75, 1.0, 1.0), (0.75, 4.0, 0.0), (0, 0.0, 0.0)])
def test_what_this_process_uses_is_no_other_programs(machine, monkeypatch, busy, own, used):
    """``busy``: share of two cores for two seconds; ``own``: seconds of that which are ours."""
    clock = iter([5.0, 5.0 + own])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    machine.pass_time(0.5)
    since = others()
    machine.pass_time(busy, ticks=2 * os.sysconf("SC_CLK_TCK"))
    assert since() == pytest.approx(used)


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


def test_where_the_system_does_not_say_all_cores_count_as_idle(machine):
    assert idle_cores() == machine.cores


def test_times_of_the_cores_are_those_of_this_process(machine, monkeypatch):
    """User, nice, system, interrupts and steal are busy; idle and waiting for a disk are not."""
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    machine.cores = 1
    machine.write(proc__stat="cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 9 9 9 9 9 9 9 9 0 0\nintr 5\n")
    used = others()
    machine.write(
        proc__stat="cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 100 50 4 5 6 7 8\ncpu1 9 9 9 9 9 9 9 9 0 0\nintr 5\n"
    )
    assert used() == pytest.approx(21 / 171)
