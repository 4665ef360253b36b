"""The folder of a submission: how it is packed and read."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import ROOT
from benchmark.config import Run, Runtime
from benchmark.contract import checks
from benchmark.files import dump_yaml, read_yaml, write_atomic
from benchmark.registry import one_line
from benchmark.runs.archive import FILES
from benchmark.runs.code_identity import is_installed, method_files, method_source
from benchmark.runs.records import Record, read_record
from benchmark.suites.plan import Row, Table
from benchmark.suites.suite import Suite, load
from datamodules.common.errors import ConfigError, RunError, message_of

SUITE, ABOUT = "suite.yaml", "submission.yaml"
PASSED = "passed"


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


def pack(suite: Suite, scale: str, results: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Create the folder of a submission from the files of ``enter``. Missing runs are left out.

    Args:
        suite: suite written by ``enter``.
        scale: scale of the leaderboard.
        results: folder that holds ``runs``.
        out: the folder to create.
        tell: called with progress messages of the contract tests.

    Raises:
        ConfigError: see ``own_row``; or ``out`` exists, or the row was not tuned.
    """
    row = own_row(suite)
    if out.exists():
        raise ConfigError(f"{out} exists already; delete it, or name another folder with --out")
    tuned = suite.tuned.path(scale)
    if not tuned.exists():
        raise ConfigError(f"{tuned}: there is no such file; `enter` tunes the row and creates it")
    runs = list(suite.runs(row, scale, runtime=Runtime(results_dir=str(results))).values())
    checked = {
        "method_source": method_source(runs[0]),
        "checks": keeps_contract(runs[0].config.method.class_path, tell),
    }
    spec = read_yaml(suite.file)
    if str(spec["extends"]).endswith(".yaml"):
        spec["extends"] = os.path.relpath((suite.folder / spec["extends"]).resolve(), out.resolve())
    files = {f"{tuned.parent.name}/{tuned.name}": tuned}
    files |= {f"runs/{run.folder.name}/{name}": run.folder / name for run in runs for name in FILES}
    for name, file in (files | _sources(runs[0])).items():
        if file.exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, out / name)
    write_atomic(out / SUITE, dump_yaml(spec))
    write_atomic(out / ABOUT, dump_yaml({"scale": scale, "contract": checked}))


def keeps_contract(method: str, tell: Callable[[str], None]) -> dict[str, str]:
    """Run the contract tests; return ``passed`` or a one-line error for each. ``tell`` gets progress messages."""
    found = {}
    tell(checks.announced([method]))
    for number, check in enumerate(checks.CHECKS, start=1):
        name = checks.title(check)
        tell(f"[{number:>2}/{len(checks.CHECKS)}] {name}")
        try:
            check(method)
        except Exception as error:  # from external code
            found[name] = one_line(message_of(error))
        else:
            found[name] = PASSED
    return found


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
    tables = (table for table in suite.tables if not table.untuned)
    rows = [row for table in tables for row in table.rows if row.method not in known]
    if len(rows) != 1:
        own = ", ".join(row.name for row in rows) or "none"
        raise ConfigError(
            f"{suite.where}: a submission extends a leaderboard by one row, but this by {own}; `enter` gives a method "
            "one row in a table of one data set"
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
    return file.is_relative_to((ROOT / "methods").resolve()) or is_installed(file)


def _sources(run: Run) -> dict[str, Path]:
    """Return the files behind a method that are to be submitted, by their path relative to their import folder."""
    found = {}
    for module, file in method_files(run).items():
        if is_public(file):
            continue
        parts = [*module.split("."), *(["__init__"] if file.name == "__init__.py" else [])]
        found["/".join(parts) + ".py"] = file
        for depth in range(1, len(parts)):
            found["/".join([*parts[:depth], "__init__.py"])] = file.parents[len(parts) - 1 - depth] / "__init__.py"
    return found
