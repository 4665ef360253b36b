"""Available memory, so that what cannot fit is refused in advance."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
"""Folder that contains ``proc`` and ``sys``; with another one, the program sees another machine."""
GROUPS = (
    ("", "memory.max", "memory.current", ""),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""For both cgroup versions: the controller, the files of limit and use, and the prefix of names in ``memory.stat``."""


def available_bytes() -> int | None:
    """Return the bytes of the machine's memory that are available to a new program; ``None`` if unknown.

    They lie within the limits of a container and of a job.
    """
    kilobytes = _table(ROOT / "proc" / "meminfo").get("MemAvailable:")
    available = [] if kilobytes is None else [kilobytes * 1024]
    for controller, limit_file, usage_file, prefix in GROUPS:
        for group in _groups(controller):
            limit, used = _number(group / limit_file), _number(group / usage_file)
            parts = _table(group / "memory.stat")
            if limit is not None and used is not None:
                cache = sum(parts.get(f"{prefix}{kind}", 0) for kind in ("active_file", "inactive_file"))
                available.append(max(0, limit - max(0, used - cache)))  # the kernel frees its cache of files on demand
    return min(available, default=None)


def in_words(num_bytes: float) -> str:
    """Format an amount of memory in GB for an error message."""
    return f"{num_bytes / 1e9:.2g} GB" if num_bytes < 1e10 else f"{num_bytes / 1e9:,.0f} GB"


def _groups(controller: str) -> Iterator[Path]:
    """The folders of a controller's groups, from the root down to the group that this process belongs to."""
    group = ROOT / "sys" / "fs" / "cgroup" / controller
    yield group
    try:
        lines = (ROOT / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if controller in controllers.split(","):
            for name in Path(path).parts[1:]:
                group /= name
                yield group


def _table(path: Path) -> dict[str, int]:
    """The numbers in a file of lines with a name and a number; none if there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines}


def _number(path: Path) -> int | None:
    """Read a number from a file; ``None`` if there is none, or no limit (``max``)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
