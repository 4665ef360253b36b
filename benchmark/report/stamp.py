"""A stamp beside a table's files: that nothing is missing, as long as nothing it rests on has changed.

To plan a suite's runs its classes are imported, and PyTorch with them. A command that has found everything complete
leaves a stamp; the same command then sees from files alone that this still holds.
"""

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmark import ROOT
from benchmark.files import read_bytes, write_atomic
from benchmark.registry import KINDS, find_class
from benchmark.runs.environment import CODE
from benchmark.suites.plan import Plan


class Stamp:
    """The stamp of one command.

    Args:
        path: its file; at most one command has its stamp there.
        asked: options of the command that decide what it runs and writes, as plain data.
        given: files that decide what is run: the suite's, and that of the published values.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any], given: Iterable[Path]) -> None:
        self.path, self.asked = path, dict(asked)
        own = (file for package in CODE for file in (ROOT / package).rglob("*") if file.suffix in (".py", ".yaml"))
        self.given = [*sorted(own), *given]

    def holds(self) -> dict[str, Any] | None:
        """What the command has left with its stamp, if nothing that it rests on has changed since; else ``None``."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            same = found["digest"] == self._digest(map(Path, found["files"]))
        except (OSError, ValueError, KeyError, TypeError):  # there is none, or none that can be read
            return None
        return dict(found["left"]) if same else None

    def write(self, plan: Plan, written: Iterable[Path], left: Mapping[str, Any]) -> None:
        """Leave the stamp; in a folder that cannot be written there is none.

        Args:
            plan: whose wanted runs are all complete.
            written: the files that the command has made or found up to date.
            left: plain data for ``holds`` to return.
        """
        paths = [run.folder for run in plan.runs.values()]
        runs = [path / name for path in paths for name in ("record.json", "metrics.jsonl")]
        files = [str(file) for file in (*runs, *sources(plan), *written)]
        with suppress(OSError):
            entry = {"digest": self._digest(map(Path, files)), "files": files, "left": dict(left)}
            write_atomic(self.path, json.dumps(entry, indent=1) + "\n")

    def _digest(self, files: Iterable[Path]) -> str:
        """SHA-256 of the options and of all files, by name; a file that is not there counts as such."""
        total = hashlib.sha256(json.dumps(self.asked, sort_keys=True, default=str).encode())
        for file in (*self.given, *files):
            content = read_bytes(file) if file.exists() else None
            total.update(f"\n{file} {content is not None} {len(content or b'')}\n".encode())
            total.update(content or b"")
        return total.hexdigest()


def sources(plan: Plan) -> list[Path]:
    """The source files of the methods and data sets of a plan, and of their base classes, wherever they are."""
    specs = {(slot, getattr(run.config, slot).class_path) for run in plan.runs.values() for slot in KINDS}
    bases = {base for slot, path in specs for base in find_class(path, KINDS[slot]).__mro__}
    files = set()
    for base in bases:
        with suppress(TypeError, OSError):  # a class without a source file, such as ``object``
            files.add(Path(inspect.getfile(base)))
    return sorted(files)
