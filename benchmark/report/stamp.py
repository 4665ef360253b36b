"""A stamp file beside a table's files: it vouches that nothing is missing, until something it depends on changes.

Planning a suite's runs imports its classes, and PyTorch with them. A command that has found everything complete leaves
a stamp, so that the same command can tell from files alone that this is still so.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmark.files import read_bytes, write_atomic
from benchmark.suites import plan_cache
from benchmark.suites.plan import Plan


class Stamp:
    """The stamp of one command.

    Args:
        path: its file; no other command has its stamp there.
        asked: what determines the command's work, as plain data: its options, and the digest of the suite.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path, self.asked = path, dict(asked)

    def holds(self) -> dict[str, Any] | None:
        """What the command left with its stamp, or ``None`` if anything it depends on has changed since."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            same = found["digest"] == self._digest(map(Path, found["files"]))
        except (OSError, ValueError, KeyError, TypeError):  # missing or unreadable
            return None
        return dict(found["left"]) if same else None

    def write(self, plan: Plan, written: Iterable[Path], left: Mapping[str, Any]) -> None:
        """Write the stamp, unless a class is of another package, or the folder cannot be written.

        Args:
            plan: a plan whose wanted runs are all complete.
            written: the files that the command has written or found up to date.
            left: plain data that ``holds`` returns.
        """
        if not plan_cache.is_ours(plan):
            return
        runs = [run.folder / name for run in plan.runs.values() for name in ("record.json", "metrics.jsonl")]
        files = [str(file) for file in (*runs, *written)]
        with suppress(OSError):
            entry = {"digest": self._digest(map(Path, files)), "files": files, "left": dict(left)}
            write_atomic(self.path, json.dumps(entry, indent=1) + "\n")

    def _digest(self, files: Iterable[Path]) -> str:
        """SHA-256 of what was asked for and of all files with their names, missing ones included."""
        total = hashlib.sha256(json.dumps(self.asked, sort_keys=True, default=str).encode())
        for file in files:
            content = read_bytes(file) if file.exists() else None
            total.update(f"\n{file} {content is not None} {len(content or b'')}\n".encode())
            total.update(content or b"")
        return total.hexdigest()
