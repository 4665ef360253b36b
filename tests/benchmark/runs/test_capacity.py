"""What is asked of the machine: threads, and the cores that it has and that are idle."""

import pytest

from benchmark.runs import capacity
from benchmark.runs.capacity import _busy_and_all, asked_threads, idle_cores


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
    ("cores", "busy", "idle"), [(8, 0.0, 8), (8, 0.05, 8), (8, 0.2, 6), (8, 1.0, 1), (2, 0.2, 2), (2, 0.3, 1)]
)
def test_idle_cores_are_those_that_nobody_else_uses(monkeypatch, cores, busy, idle):
    """``busy``: share of all cores; up to half a core counts as nothing."""
    looks = iter([(100, 1000), (100 + 1000 * busy, 2000)])
    monkeypatch.setattr(capacity, "cores", lambda: cores)
    monkeypatch.setattr(capacity, "_busy_and_all", lambda: next(looks))
    monkeypatch.setattr(capacity, "LOOK_S", 0.0)
    assert idle_cores() == idle


@pytest.mark.parametrize(("busy", "own", "used"), [(300, 3.0, 0.0), (300, 1.0, 1.0), (300, 4.0, 0.0), (0, 0.0, 0.0)])
def test_what_this_process_uses_is_no_other_programs(monkeypatch, busy, own, used):
    """``busy``: ticks of 400 on two cores, 100 of them a second each; ``own``: seconds that are ours."""
    looks, clock = iter([(100, 1000), (100 + busy, 1400)]), iter([5.0, 5.0 + own])
    monkeypatch.setattr(capacity, "cores", lambda: 2)
    monkeypatch.setattr(capacity, "_busy_and_all", lambda: next(looks))
    monkeypatch.setattr(capacity.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(capacity.os, "sysconf", lambda name: 100)
    assert capacity.others()() == used


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
def test_a_container_has_time_on_fewer_cores(monkeypatch, tmp_path, files, share):
    group = tmp_path / "sys" / "fs" / "cgroup"
    (group / "cpu").mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(text)
    assert capacity.cpu_share(tmp_path) == share
    monkeypatch.setattr(capacity, "cpu_share", lambda: share)
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: set(range(3)))
    assert capacity.cores() == min(3, int(share or 3))


def test_where_the_system_does_not_say_all_cores_count_as_idle(monkeypatch, tmp_path):
    monkeypatch.setattr(capacity, "LOOK_S", 0.0)
    monkeypatch.setattr(capacity, "_busy_and_all", lambda: _busy_and_all(tmp_path / "none"))
    assert idle_cores() == capacity.cores()


def test_times_of_the_cores_are_those_of_this_process(monkeypatch, tmp_path):
    """User, nice, system, interrupts and steal are busy; idle and waiting for a disk are not."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 100 50 4 5 6 7 8\ncpu1 9 9 9 9 9 9 9 9 0 0\nintr 5\n")
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: {0})
    assert _busy_and_all(stat) == (21, 171)
