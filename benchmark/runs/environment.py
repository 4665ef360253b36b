"""What a run ran on: software and hardware. Recorded, never part of a run's identity."""

import os
import platform
import sys
from typing import Any

from benchmark.runs.capacity import cores
from datamodules.common import system

NATIVE = {  # CPU flags of native 16-bit arithmetic as Linux names them; the last of each is Arm's
    "bf16-mixed": ("bfloat16", ["avx512_bf16", "amx_bf16", "bf16"]),
    "16-mixed": ("float16", ["avx512_fp16", "amx_fp16", "asimdhp"]),
}
GPUS = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")  # on Linux, one exists with a GPU


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


def machine(gpu: str | None = None) -> dict[str, Any]:
    """The entries of ``environment`` that must agree for times to be comparable, for a process on ``gpu``."""
    return {"cpu": cpu_model(), "cores": cores(), "gpu": gpu}


def gpu_name(accelerator: str) -> str | None:
    """Name of the GPU that an accelerator (``cpu``, ``cuda`` or ``auto``) stands for here; ``None`` for the CPU."""
    if accelerator == "cpu" or (sys.platform == "linux" and not any(map(os.path.exists, GPUS))):
        return None  # PyTorch would say the same, but takes seconds to import
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def uses_gpu(environment: dict[str, Any]) -> bool:
    """Whether a run was made on a GPU, from its record's ``environment``."""
    return bool(environment.get("gpu")) and environment.get("accelerator") != "cpu"


def hardware(environment: dict[str, Any]) -> str:
    """The hardware of a run in one phrase, from its record's ``environment``."""
    devices, gpu = environment.get("devices", 1), environment.get("gpu")
    if uses_gpu(environment):
        return f"{devices} x {gpu}" if devices not in (1, "auto") else str(gpu)
    processes = devices if isinstance(devices, int) else 1
    return f"{environment['cpu']}, {processes * environment['threads']} of {environment['cores']} cores per run"


def cpu_model() -> str:
    """Name of the processor, as the system reports it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def slow_precision(precision: str) -> str:
    """A warning if a precision is known to be slower than 32 bits on this processor, else an empty text."""
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    kind, native = NATIVE.get(precision, ("", []))
    if not kind or not flags or flags & set(native):
        return ""
    return (
        f"{cpu_model()} does not calculate with {kind} itself (it has neither {' nor '.join(native[:2])}): "
        f"{precision} will be slower on it than 32-true"
    )


def _cpuinfo(key: str) -> str:
    """The first value of a key in ``/proc/cpuinfo``; empty if there is none."""
    info = system.ROOT / "proc" / "cpuinfo"
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""
