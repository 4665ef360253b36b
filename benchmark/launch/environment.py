"""On what a run ran: versions, hardware, the state of the code. Recorded, never part of a run's identity."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("benchmark", "methods", "datamodules")


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


def hardware(environment: dict[str, Any]) -> str:
    """One phrase for the header of a table."""
    devices, gpu = environment.get("devices", 1), environment.get("gpu")
    if gpu and environment.get("accelerator") != "cpu":
        return f"{devices} x {gpu}" if devices not in (1, "auto") else str(gpu)
    return f"{environment['cpu']}, {environment['threads']} of {environment['cores']} cores per run"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """Name of the processor as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def code_version() -> str:
    """``git describe`` of the checkout, marked ``-dirty`` if its code differs, else the package's version.

    A checkout that git says nothing of is marked: its code may be anything.
    """
    checkout = (ROOT / ".git").exists()
    described = _git("describe", "--always", "--tags", "--abbrev=12") if checkout else None
    if described:
        return described + ("-dirty" if _git("status", "--porcelain", "--", *CODE) else "")
    mark = "-unknown (a checkout, and no git to ask)" if checkout else ""
    try:
        return version("fssl-bench") + mark
    except PackageNotFoundError:
        return f"unknown{mark}"


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
