"""What is asked of the machine: threads, idle cores, and what its processor can do."""

import pytest

from benchmark.runs import environment
from benchmark.runs.environment import (
    _busy_and_all,
    _cpuinfo,
    asked_threads,
    hardware,
    idle_cores,
    slow_precision,
)


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
    monkeypatch.setattr(environment, "cores", lambda: cores)
    monkeypatch.setattr(environment, "_busy_and_all", lambda: next(looks))
    monkeypatch.setattr(environment, "LOOK_S", 0.0)
    assert idle_cores() == idle


@pytest.mark.parametrize(("busy", "own", "used"), [(300, 3.0, 0.0), (300, 1.0, 1.0), (300, 4.0, 0.0), (0, 0.0, 0.0)])
def test_what_this_process_uses_is_no_other_programs(monkeypatch, busy, own, used):
    """``busy``: ticks of 400 on two cores, 100 of them a second each; ``own``: seconds that are ours."""
    looks, clock = iter([(100, 1000), (100 + busy, 1400)]), iter([5.0, 5.0 + own])
    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(environment, "_busy_and_all", lambda: next(looks))
    monkeypatch.setattr(environment.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(environment.os, "sysconf", lambda name: 100)
    assert environment.others()() == used


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
    assert environment.cpu_share(tmp_path) == share
    monkeypatch.setattr(environment, "cpu_share", lambda: share)
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda _: set(range(3)))
    assert environment.cores() == min(3, int(share or 3))


def test_where_the_system_does_not_say_all_cores_count_as_idle(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "LOOK_S", 0.0)
    monkeypatch.setattr(environment, "_busy_and_all", lambda: _busy_and_all(tmp_path / "none"))
    assert idle_cores() == environment.cores()


def test_times_of_the_cores_are_those_of_this_process(monkeypatch, tmp_path):
    """User, nice, system, interrupts and steal are busy; idle and waiting for a disk are not."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 100 50 4 5 6 7 8\ncpu1 9 9 9 9 9 9 9 9 0 0\nintr 5\n")
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda _: {0})
    assert _busy_and_all(stat) == (21, 171)


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        ("model name\t: A\nflags\t\t: fpu avx512f\nmodel name\t: B\n", True),
        ("model name\t: A\nflags\t\t: fpu avx512_bf16 amx_tile\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", True),
        ("nothing is known\n", False),
    ],
)
def test_bfloat16_is_slow_on_a_processor_that_is_known_not_to_have_it(monkeypatch, tmp_path, text, slow):
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    monkeypatch.setattr(environment, "_cpuinfo", lambda key: _cpuinfo(key, info))
    assert bool(slow_precision("bf16-mixed")) == slow
    assert ("with float16 itself (it has neither avx512_fp16" in slow_precision("16-mixed")) == ("is known" not in text)
    assert slow_precision("32-true") == ""


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"threads": 2}, "Some CPU, 2 of 8 cores per run"),
        ({"threads": 1, "devices": 1}, "Some CPU, 1 of 8 cores per run"),
        ({"threads": 2, "devices": 3}, "Some CPU, 6 of 8 cores per run"),
        ({"threads": 1, "devices": 2, "gpu": "Some GPU", "accelerator": "cuda"}, "2 x Some GPU"),
    ],
)
def test_the_hardware_of_a_run_counts_all_of_its_processes(run, told):
    assert hardware({"cpu": "Some CPU", "cores": 8, "gpu": None, "accelerator": "cpu"} | run) == told
