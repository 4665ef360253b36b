"""Files beside a suite that commands write: chosen learning rates (``tuned``), admitted settings (``admitted``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import SoftFileLock, Timeout

from datamodules.common.errors import ConfigError
from datamodules.common.files import write_atomic
from datamodules.common.yaml import dump_yaml, read_yaml

PATIENCE_S = 60.0
HEADS = {
    "tuned": "# Made by `python -m benchmark tune`: the rates that a row uses, and all that were tried.\n",
    "admitted": "# Made by `python -m benchmark admit`: which settings are ranked, and the figures that decided "
    "(RULES.md).\n",
}


@dataclass(frozen=True)
class SideFile:
    """One YAML file for each scale, with an entry for each row (``tuned``) or ``table/dataset`` (``admitted``).

    Args:
        folder: the suite's.
        kind: what the files hold; the name of their folder.
        paper: the suite's name, with which their names begin.
    """

    folder: Path
    kind: Literal["tuned", "admitted"]
    paper: str

    def path(self, scale: str) -> Path:
        """The file of a scale, whether or not it exists."""
        return self.folder / self.kind / f"{self.paper}-{scale}.yaml"

    def own(self, scale: str) -> dict[str, Any]:
        """The entries of the file; none where it does not exist.

        Raises:
            ConfigError: it cannot be read, or an entry is not as the command writes it.
        """
        path = self.path(scale)
        entries = read_yaml(path) if path.exists() else {}
        for name, entry in entries.items():
            if not isinstance(entry, dict) or not self._is_valid(entry):
                command = "tune" if self.kind == "tuned" else "admit"
                raise ConfigError(f"{path}, {name}: not a valid entry; delete it and run `{command}` again")
        return entries

    def _is_valid(self, entry: Mapping[str, Any]) -> bool:
        if self.kind == "admitted":
            return isinstance(entry.get("admitted"), bool)
        return isinstance(entry.get("options", entry.get("trials")), dict)

    def add(self, scale: str, entries: Mapping[str, Any]) -> None:
        """Write entries to the file; all others stay, and so do those that other processes add meanwhile.

        The lock is a file, which goes away again: folders cannot be locked everywhere.

        Raises:
            ConfigError: an entry of the file is not valid, or another process keeps it locked.
        """
        if not entries:
            return
        path = self.path(scale)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = SoftFileLock(path.with_name(f".{path.name}.lock"), PATIENCE_S)
        try:
            with lock:
                write_atomic(path, HEADS[self.kind] + dump_yaml({**self.own(scale), **entries}))
        except Timeout:
            raise ConfigError(
                f"{path} is being written by another process; if there is none, delete {lock.lock_file}"
            ) from None
