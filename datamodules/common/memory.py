"""Available memory, so that what cannot fit is refused in advance."""

from collections.abc import Iterator
from pathlib import Path

import torch

from datamodules.common import system

GROUPS = (
    ("", "memory.max", "memory.current", ""),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""For both cgroup versions: the controller, the files of limit and use, and the prefix of names in ``memory.stat``."""


def available_bytes(device: torch.device | None = None) -> int | None:
    """Return the bytes available to a new program; ``None`` if unknown.

    Args:
        device: a GPU, for its memory; otherwise the machine's memory, within the limits of a container and of a job.
    """
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [_meminfo(system.ROOT / "proc" / "meminfo")]
    for controller, limit, usage, prefix in GROUPS:
        for group in _groups(controller):
            most, used = _number(group / limit), _number(group / usage)
            if most is not None and used is not None:
                found.append(max(0, most - max(0, used - _file_cache(group / "memory.stat", prefix))))
    known = [one for one in found if one is not None]
    return min(known) if known else None


def in_words(num_bytes: float) -> str:
    """Format an amount of memory in GB for an error message."""
    return f"{num_bytes / 1e9:.2g} GB" if num_bytes < 1e10 else f"{num_bytes / 1e9:,.0f} GB"


def _meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _groups(controller: str) -> Iterator[Path]:
    """The folders of a controller's groups, from the root down to the group that this process belongs to."""
    group = system.ROOT / "sys" / "fs" / "cgroup" / controller
    yield group
    try:
        lines = (system.ROOT / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if controller in controllers.split(","):
            for name in Path(path).parts[1:]:
                group /= name
                yield group


def _file_cache(path: Path, prefix: str) -> int:
    """Bytes of the page cache, which the kernel frees on demand; 0 if unknown."""
    try:
        parts = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return sum(int(parts.get(f"{prefix}{kind}", 0)) for kind in ("active_file", "inactive_file"))


def _number(path: Path) -> int | None:
    """Read a number from a file; ``None`` if there is none, or no limit (``max``)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
