"""What a run runs on: software and hardware, and what the machine can take.

Recorded, never part of a run's identity.
"""

import os
import platform
import re
import sys
import time
from contextlib import suppress
from typing import Any, Literal

from datamodules.common import memory
from datamodules.common.errors import ConfigError

GPUS = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")  # on Linux, one exists with a GPU
PROCESS_BYTES = 400_000_000  # memory of a process without data: Python, torch and Lightning
MOST_PER_CORE = 4  # processes; more than one already slows the others down
LOOKS, LOOK_S = 5, 0.02  # at what runs on the machine


def environment() -> dict[str, Any]:
    """Software and hardware of this process, as plain data. GPUs are listed only if the process uses one."""
    import lightning
    import torch

    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # any other query would wake an idle GPU
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "lightning": lightning.__version__,
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "gpus": torch.cuda.device_count() if on_gpu else 0,
        "tf32": torch.backends.cudnn.allow_tf32 and on_gpu,
    }


def accelerator_here(accelerator: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """``cpu`` or ``cuda``: what ``auto`` stands for here."""
    import torch

    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"


def gpu_name(accelerator: str) -> str | None:
    """Name of the GPU that an accelerator (``cpu``, ``cuda`` or ``auto``) stands for here; ``None`` for the CPU."""
    if accelerator == "cpu" or (sys.platform == "linux" and not any(map(os.path.exists, GPUS))):
        return None  # PyTorch would say the same, but takes seconds to import
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def hardware(environment: dict[str, Any]) -> str:
    """The hardware of a run in one phrase, from its record's ``environment``."""
    devices, nodes, gpu = environment.get("devices", 1), environment.get("num_nodes", 1), environment.get("gpu")
    processes = nodes * (devices if isinstance(devices, int) else 1)
    if gpu and environment.get("accelerator") != "cpu":
        return f"{processes} x {gpu}" if processes > 1 else str(gpu)
    return f"{environment['cpu']}, {processes * environment['threads']} of {nodes * environment['cores']} cores per run"


def cpu_model() -> str:
    """Name of the processor, as the system reports it."""
    info = memory.ROOT / "proc" / "cpuinfo"
    text = info.read_text(errors="replace") if info.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def cores() -> int:
    """CPU cores that this process may use: those it is bound to, limited by the CPU quota of its container."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cpu_share()
    return bound if share is None else max(1, min(bound, int(share)))


def idle_cores() -> int:
    """Cores that no program is using at the moment, at least 1; all of them if the system does not tell.

    All threads of a process wait for the slowest one, which may wait for a core, at the end of every operation.
    """
    running = []
    for _ in range(LOOKS):
        try:
            threads = (memory.ROOT / "proc" / "loadavg").read_text().split()[3]  # running/all
        except (OSError, IndexError):
            return cores()
        running.append(int(threads.partition("/")[0]))
        time.sleep(LOOK_S)
    return max(1, min(cores(), (os.cpu_count() or 1) + 1 - min(running)))  # this thread is running, too


def free_threads() -> int:
    """CPU threads of a run in one process: as many as ``OMP_NUM_THREADS`` asks for, or one per idle core."""
    return asked_threads() or idle_cores()


def asked_threads() -> int | None:
    """CPU threads that ``OMP_NUM_THREADS`` asks for; ``None`` if it is not set to a number."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # OpenMP allows a list, one number per nesting level
    return int(asked) if asked.isdigit() and int(asked) > 0 else None


def cpu_share() -> float | None:
    """The container's CPU quota in cores, from control groups of either version; ``None`` without a limit."""
    group = memory.ROOT / "sys" / "fs" / "cgroup"
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # no such file, or no limit (``max``)
            quota, period = " ".join((group / name).read_text() for name in names).split()
            return int(quota) / int(period) if int(quota) > 0 else None
    return None


def bearable(processes: int) -> int:
    """How many of ``processes`` fit into the free memory, before they load any data; at least 1."""
    free = memory.available_bytes()
    return processes if free is None else max(1, min(processes, free // PROCESS_BYTES))


def check_processes(option: str, processes: int) -> None:
    """Refuse more processes than this machine can run.

    Args:
        option: the option that asks for them.
        processes: how many would be started here.

    Raises:
        ConfigError: there are too many for the cores or the memory.
    """
    most = min(MOST_PER_CORE * cores(), bearable(processes))
    if processes > most:
        raise ConfigError(
            f"{option} {processes}: so many processes take {memory.in_words(processes * PROCESS_BYTES)} of memory "
            f"before they have any data, and share {cores()} cores; give {most} at most, and one per core is fastest"
        )
