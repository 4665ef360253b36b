"""A stamp beside a table's files: that nothing is missing, as long as nothing it rests on has changed.

To plan a suite's runs its classes are imported, and PyTorch with them. A command that has found everything complete
leaves a stamp; the same command then sees from files alone that this still holds.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmark.files import read_bytes, write_atomic
from benchmark.suites import kept
from benchmark.suites.plan import Plan


class Stamp:
    """The stamp of one command.

    Args:
        path: its file; at most one command has its stamp there.
        asked: what the command runs and writes by, as plain data: its options, and ``kept.digest`` of the suite.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path, self.asked = path, dict(asked)

    def holds(self) -> dict[str, Any] | None:
        """What the command has left with its stamp, if nothing that it rests on has changed since; else ``None``."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            same = found["digest"] == self._digest(map(Path, found["files"]))
        except (OSError, ValueError, KeyError, TypeError):  # missing or unreadable
            return None
        return dict(found["left"]) if same else None

    def write(self, plan: Plan, written: Iterable[Path], left: Mapping[str, Any]) -> None:
        """Leave the stamp; there is none of classes of other packages, nor in a folder that cannot be written.

        Args:
            plan: whose wanted runs are all complete.
            written: the files that the command has made or found up to date.
            left: plain data for ``holds`` to return.
        """
        if not kept.is_ours(plan):
            return
        runs = [run.folder / name for run in plan.runs.values() for name in ("record.json", "metrics.jsonl")]
        files = [str(file) for file in (*runs, *written)]
        with suppress(OSError):
            entry = {"digest": self._digest(map(Path, files)), "files": files, "left": dict(left)}
            write_atomic(self.path, json.dumps(entry, indent=1) + "\n")

    def _digest(self, files: Iterable[Path]) -> str:
        """SHA-256 of what was asked for and of all files, by name; a file that is not there counts as such."""
        total = hashlib.sha256(json.dumps(self.asked, sort_keys=True, default=str).encode())
        for file in files:
            content = read_bytes(file) if file.exists() else None
            total.update(f"\n{file} {content is not None} {len(content or b'')}\n".encode())
            total.update(content or b"")
        return total.hexdigest()
