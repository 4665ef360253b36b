"""Files beside a suite that commands write: chosen learning rates, admitted settings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import SoftFileLock, Timeout

from benchmark.files import read_yaml, with_entries, write_atomic
from datamodules.common.errors import ConfigError

PATIENCE_S = 60.0


@dataclass(frozen=True)
class SideFile:
    """One YAML file for each scale, with an entry for each row or setting.

    Args:
        folder: where the files are.
        paper: the suite's name, with which their names begin.
        head: first line of a file: who wrote it, and what it holds.
        is_valid: whether an entry is complete.
        problem: what is wrong with one that is not.
        extended: the files of the suite that this one extends.
    """

    folder: Path
    paper: str
    head: str
    is_valid: Callable[[Mapping[str, Any]], bool]
    problem: str
    extended: "SideFile | None" = None

    def path(self, scale: str) -> Path:
        """The file of a scale, whether or not it exists."""
        return self.folder / f"{self.paper}-{scale}.yaml"

    def own(self, scale: str) -> dict[str, Any]:
        """The entries of the file itself; none where it does not exist.

        Raises:
            ConfigError: an entry is not valid.
        """
        path = self.path(scale)
        entries = read_yaml(path) if path.exists() else {}
        for name, entry in entries.items():
            if not isinstance(entry, dict) or not self.is_valid(entry):
                raise ConfigError(f"{path}, {name}: {self.problem}")
        return entries

    def entries(self, scale: str) -> dict[str, Any]:
        """All entries at a scale: those of the extended suite, and this suite's own on top of them.

        Raises:
            ConfigError: as ``own``.
        """
        return {**(self.extended.entries(scale) if self.extended else {}), **self.own(scale)}

    def add(self, scale: str, entries: Mapping[str, Any]) -> None:
        """Write entries to the file; all else in it stays, with its comments, and so does what others add meanwhile.

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
                self.own(scale)
                before = path.read_text(encoding="utf-8") if path.exists() else f"# {self.head}\n"
                write_atomic(path, with_entries(before, entries))
        except Timeout:
            raise ConfigError(
                f"{path} is being written by another process; if there is none, delete {lock.lock_file}"
            ) from None


def check(files: Iterable[SideFile], scale: str) -> None:
    """Read the files of a scale, so that a damaged one is told before anything is run.

    Raises:
        ConfigError: an entry is not valid.
    """
    for file in files:
        file.entries(scale)


def tuned(folder: Path, paper: str, extended: SideFile | None) -> SideFile:
    """What tuning has chosen for rows (by ``Row.full_name``), and what it tried."""
    return SideFile(
        folder / "tuned",
        paper,
        "Made by `python -m benchmark tune`: the rates that a row uses, and all that were tried.",
        lambda entry: isinstance(entry.get("options", entry.get("trials")), dict),
        "there are no `options`; `tune` writes them",
        extended,
    )


def admitted(folder: Path, paper: str, extended: SideFile | None) -> SideFile:
    """Which settings (``table/dataset``) are ranked, and the figures that decided."""
    return SideFile(
        folder / "admitted",
        paper,
        "Made by `python -m benchmark admit`: which settings are ranked, and the figures that decided (RULES.md).",
        lambda entry: isinstance(entry.get("admitted"), bool),
        "`admitted` is neither true nor false; `admit` writes it",
        extended,
    )
