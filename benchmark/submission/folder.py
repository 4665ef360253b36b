"""Reading the folder of a submission."""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import ROOT
from benchmark.config import Run, Runtime
from benchmark.files import read_yaml
from benchmark.runs.records import Record, read_record
from benchmark.suites.plan import Row, Table
from benchmark.suites.suite import Suite, load
from datamodules.common.errors import ConfigError, RunError

SUITE, ABOUT = "suite.yaml", "submission.yaml"


@dataclass(frozen=True)
class Submission:
    """A submission read from its folder.

    Args:
        folder: its folder.
        suite: the leaderboard's suite, extended by the row.
        scale: scale of the leaderboard.
        row: the row.
        about: content of ``submission.yaml``.
        runs: the row's runs according to the suite, in the folder, by seed.
        records: records of these runs, by seed.
        damaged: problems of unreadable records, by folder name.
        others: records of other runs in the folder, by folder name.
    """

    folder: Path
    suite: Suite
    scale: str
    row: Row
    about: Mapping[str, Any]
    runs: Mapping[int, Run]
    records: Mapping[int, Record]
    damaged: Mapping[str, str]
    others: Mapping[str, Record]

    @property
    def all_records(self) -> dict[str, Record]:
        """All records in the folder, by a description of the run."""
        return {f"seed {seed}": one for seed, one in sorted(self.records.items())} | dict(self.others)

    @property
    def first(self) -> Run:
        """The run with the first seed."""
        return next(iter(self.runs.values()))

    @property
    def table(self) -> Table:
        """The row's table."""
        return next(table for table in self.suite.tables if table.number == self.row.table)

    @property
    def reference(self) -> Row | None:
        """The reference row of the setting, if it has one."""
        rows = [row for row in self.table.rows if row.dataset == self.row.dataset]
        return next((row for row in rows if row.method == self.table.reference), None)


def opened(place: Path) -> Submission:
    """Read a submission; its method must be ``importable``.

    Raises:
        ConfigError: there is no such folder, or its suite cannot be read.
    """
    if not (place / SUITE).exists():
        raise ConfigError(f"{place}: there is no {SUITE}; `submit --paper SUITE` creates the folder of a submission")
    about, suite = read_yaml(place / ABOUT), load(str(place / SUITE))
    scale, row = str(about.get("scale")), own_row(suite)
    runs = suite.runs(row, scale, runtime=Runtime(results_dir=str(place)))
    seeds = {run.folder.name: seed for seed, run in runs.items()}
    records: dict[int, Record] = {}
    damaged, others = {}, {}
    for path in sorted((place / "runs").glob("*")):
        try:
            record = read_record(path)
        except RunError as error:
            damaged[path.name] = str(error)
            continue
        if path.name in seeds:
            records[seeds[path.name]] = record
        else:
            others[path.name] = record
    return Submission(place, suite, scale, row, about, runs, records, damaged, others)


def own_row(suite: Suite) -> Row:
    """Return the row that a suite adds to a leaderboard.

    Raises:
        ConfigError: it does not extend a leaderboard by exactly one row.
    """
    known = (suite.extended or suite).spec["labels"]
    rows = [row for row in suite.rows if row.method not in known]
    if len(rows) != 1:
        raise ConfigError(
            f"{suite.where}: a submission extends a leaderboard by one row, but this has {len(rows)}; "
            "`enter` writes such a suite"
        )
    return rows[0]


@contextmanager
def importable(place: Path) -> Iterator[None]:
    """Import modules from a folder while the context is open, even if others of their names are imported already."""
    tops = {one.stem for one in place.glob("*.py")} | {one.parent.name for one in place.glob("*/__init__.py")}

    def loaded() -> dict[str, Any]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}

    kept = loaded()
    for name in kept:
        del sys.modules[name]
    sys.path.insert(0, str(place.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(place.resolve()))
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(kept)


def is_public(file: Path) -> bool:
    """Whether a file is public: part of this repository or of an installed package."""
    homes = ROOT / "methods", Path(sysconfig.get_path("purelib"))
    return any(file.is_relative_to(home.resolve()) for home in homes)
