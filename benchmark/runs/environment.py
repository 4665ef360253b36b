"""What a run ran on: software, hardware, and how busy the machine is. Recorded, never part of a run's identity."""

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datamodules.common.errors import ConfigError

NATIVE = {  # processors' own arithmetic in 16 bits, as Linux spells it, the last ones on Arm
    "bf16-mixed": ("bfloat16", ["avx512_bf16", "amx_bf16", "bf16"]),
    "16-mixed": ("float16", ["avx512_fp16", "amx_fp16", "asimdhp"]),
}
LOOK_S = 0.1  # how long other programs' use of the cores is observed
IDLE = 0.5  # cores: less counts as nothing
PROCESS_BYTES = 400_000_000  # what a process takes before it has any data: Python, torch and Lightning
GPUS = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")  # one of them, where Linux has a GPU
MOST_PER_CORE = 4  # processes: beyond one they only get in each other's way


def environment() -> dict[str, Any]:
    """Software and hardware of this process; values are plain data. GPUs are those of a process that uses one."""
    import lightning
    import torch

    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # other questions wake an idle GPU
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


def machine(gpu: str | None = None) -> dict[str, Any]:
    """What tells machines apart when times are compared: entries of ``environment``, for a process on ``gpu``."""
    return {"cpu": cpu_model(), "cores": cores(), "gpu": gpu}


def gpu_name(accelerator: str) -> str | None:
    """The GPU that runs take with this accelerator (``cpu``, ``cuda`` or ``auto``); ``None`` for the CPU."""
    if accelerator == "cpu" or (sys.platform == "linux" and not any(map(os.path.exists, GPUS))):
        return None  # PyTorch, which takes seconds to import, would say the same
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def hardware(environment: dict[str, Any]) -> str:
    """One phrase for the header of a table."""
    devices, gpu = environment.get("devices", 1), environment.get("gpu")
    if gpu and environment.get("accelerator") != "cpu":
        return f"{devices} x {gpu}" if devices not in (1, "auto") else str(gpu)
    processes = devices if isinstance(devices, int) else 1
    return f"{environment['cpu']}, {processes * environment['threads']} of {environment['cores']} cores per run"


def cores() -> int:
    """CPU cores that this process may use: those it may run on, but no more than a container has time on."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cpu_share()
    return own if share is None else max(1, min(own, int(share)))


def cpu_share(system: Path = Path("/")) -> float | None:
    """Cores' worth of time that a container grants, in both versions of control groups; ``None`` without a limit.

    Args:
        system: where ``sys`` lies.
    """
    group = system / "sys" / "fs" / "cgroup"
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / name).read_text() for name in names).split()
            return int(quota) / int(period) if int(quota) > 0 else None
        except (OSError, ValueError):  # there is no such file, or no limit (``max``)
            continue
    return None


def bearable(processes: int) -> int:
    """How many of so many processes this machine has the memory for, before they have any data; at least 1."""
    from datamodules.common.memory import available_bytes  # imports torch

    free = available_bytes()
    return processes if free is None else max(1, min(processes, free // PROCESS_BYTES))


def check_processes(option: str, processes: int) -> None:
    """Refuse more processes than this machine can bear.

    Args:
        option: that asks for them, for the message.
        processes: how many would be started here.

    Raises:
        ConfigError: they are too many for its cores or its memory; says what they would take.
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
    """CPU threads that ``OMP_NUM_THREADS`` asks for; ``None`` where it does not say."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # OpenMP takes a list, one number per nesting level
    return int(asked) if asked.isdigit() and int(asked) > 0 else None


def idle_cores() -> int:
    """Cores that no other program is using at the moment, at least 1 (all of them where the system does not say).

    A thread that has to wait for a core holds up all threads of its process at the end of every operation, so threads
    beyond this number make a run slower, and with small operations many times slower.
    """
    used = others()
    time.sleep(LOOK_S)
    count = used()
    return cores() if count < IDLE else max(1, int(cores() - count))


def others() -> Callable[[], float]:
    """Begin to observe this process's cores; what this returns says how many of them others have used since then.

    That is a mean over the time, 0 where the system does not say. What this process itself has used is taken off.
    """
    before, own = _busy_and_all(), time.process_time()

    def used() -> float:
        after = _busy_and_all()
        if before is None or after is None or after[1] == before[1]:
            return 0.0
        ours = (time.process_time() - own) * os.sysconf("SC_CLK_TCK")
        return cores() * max(0.0, after[0] - before[0] - ours) / (after[1] - before[1])

    return used


def _busy_and_all(stat: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Time that the cores of this process have been busy, and all their time, in the system's ticks."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
        own = os.sched_getaffinity(0)
    except (OSError, AttributeError):
        return None
    ticks = [
        [int(n) for n in line[1:9]]
        for line in lines
        if line[0][:3] == "cpu" and line[0][3:].isdigit() and int(line[0][3:]) in own
    ]
    everything = sum(map(sum, ticks))
    idle = sum(core[3] + core[4] for core in ticks)  # idle, and idle while a disk works
    return everything - idle, everything


def cpu_model() -> str:
    """Name of the processor as the system gives it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def slow_precision(precision: str) -> str:
    """A warning where a precision makes runs slower on this processor; empty where it does not, or is not known to."""
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    kind, native = NATIVE.get(precision, ("", []))
    if not kind or not flags or flags & set(native):
        return ""
    return (
        f"{cpu_model()} does not calculate with {kind} itself (it has neither {' nor '.join(native[:2])}): "
        f"{precision} will be slower on it than 32-true"
    )


def _cpuinfo(key: str, info: Path = Path("/proc/cpuinfo")) -> str:
    """The first value of a key that the system gives for its processors; empty where there is none."""
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""
