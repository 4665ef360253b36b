"""What a machine can take: cores, threads, and memory for processes."""

import os
import time

from datamodules.common import system
from datamodules.common.errors import ConfigError

PROCESS_BYTES = 400_000_000  # memory of a process without data: Python, torch and Lightning
LOOKS, LOOK_S = 5, 0.02
MOST_PER_CORE = 4  # processes; more than one already slows the others down


def cores() -> int:
    """CPU cores that this process may use: those it is bound to, limited by the CPU quota of its container."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cpu_share()
    return own if share is None else max(1, min(own, int(share)))


def idle_cores() -> int:
    """Cores that no program is using at the moment, at least 1; all of them if the system does not tell.

    All threads of a process wait for the slowest one, which may wait for a core, at the end of every operation.
    """
    running = []
    for _ in range(LOOKS):
        try:
            told = (system.ROOT / "proc" / "loadavg").read_text().split()[3]
        except (OSError, IndexError):
            return cores()
        running.append(int(told.partition("/")[0]))
        time.sleep(LOOK_S)
    return max(1, min(cores(), (os.cpu_count() or 1) + 1 - min(running)))  # this thread is running, too


def cpu_share() -> float | None:
    """The container's CPU quota in cores, from control groups of either version; ``None`` without a limit."""
    group = system.ROOT / "sys" / "fs" / "cgroup"
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / name).read_text() for name in names).split()
            return int(quota) / int(period) if int(quota) > 0 else None
        except (OSError, ValueError):  # no such file, or no limit (``max``)
            continue
    return None


def bearable(processes: int) -> int:
    """How many of ``processes`` fit into the free memory, before they load any data; at least 1."""
    from datamodules.common.memory import available_bytes  # imports torch

    free = available_bytes()
    return processes if free is None else max(1, min(processes, free // PROCESS_BYTES))


def check_processes(option: str, processes: int) -> None:
    """Refuse more processes than this machine can run.

    Args:
        option: the option that asks for them.
        processes: how many would be started here.

    Raises:
        ConfigError: there are too many for the cores or the memory.
    """
    from datamodules.common.memory import available_bytes, in_words  # imports torch

    free = available_bytes()
    most = min(MOST_PER_CORE * cores(), bearable(processes))
    if processes > most:
        memory = "" if free is None else f", of which {in_words(free)} are free"
        raise ConfigError(
            f"{option} {processes}: so many processes take {in_words(processes * PROCESS_BYTES)} of memory before they "
            f"have any data{memory}, and share {cores()} cores; give {most} at most, and one per core is fastest"
        )


def asked_threads() -> int | None:
    """CPU threads that ``OMP_NUM_THREADS`` asks for; ``None`` if it is not set to a number."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # OpenMP allows a list, one number per nesting level
    return int(asked) if asked.isdigit() and int(asked) > 0 else None
