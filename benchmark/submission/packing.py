"""Packing a submission from what ``enter`` has left."""

import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmark import tuning
from benchmark.config import Run, Runtime
from benchmark.files import dump_yaml, read_yaml, write_atomic
from benchmark.registry import KINDS, imported
from benchmark.runs.archive import FILES
from benchmark.runs.code_identity import method_source
from benchmark.submission.checking import keeps_contract
from benchmark.submission.folder import ABOUT, SUITE, is_public, own_row
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError


def pack(suite: Suite, scale: str, results: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Create the folder of a submission from the files of ``enter``. Missing runs are left out.

    Args:
        suite: suite written by ``enter``.
        scale: scale of the leaderboard.
        results: folder that holds ``runs`` and ``tuning``.
        out: the folder to create.
        tell: called with progress messages of the contract tests.

    Raises:
        ConfigError: see ``own_row``; or ``out`` exists, or the row was not tuned.
    """
    row = own_row(suite)
    if out.exists():
        raise ConfigError(f"{out} exists already; delete it, or name another folder with --out")
    tuned, journal = suite.tuned.path(scale), tuning.journal_of(suite, scale, results)
    for file in (tuned, journal):
        if not file.exists():
            raise ConfigError(f"{file}: there is no such file; `enter` tunes the row and creates it")
    runs = list(suite.runs(row, scale, runtime=Runtime(results_dir=str(results))).values())
    checked = {
        "method_source": method_source(runs[0]),
        "checks": keeps_contract(runs[0].config.method.class_path, tell),
    }
    spec = read_yaml(suite.file)
    if str(spec["extends"]).endswith(".yaml"):
        spec["extends"] = os.path.relpath(suite.folder / spec["extends"], out)
    files = {f"{tuned.parent.name}/{tuned.name}": tuned, f"{tuning.FOLDER}/{journal.name}": journal}
    files |= {f"runs/{run.folder.name}/{name}": run.folder / name for run in runs for name in FILES}
    for name, file in (files | _sources(runs[0])).items():
        if file.exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, out / name)
    write_atomic(out / SUITE, dump_yaml(spec))
    write_atomic(out / ABOUT, dump_yaml({"scale": scale, "contract": checked}))


def _sources(run: Run) -> dict[str, Path]:
    """Return the source files of a method to submit, by their path relative to their import folder."""
    base, found = imported(KINDS["method"].base), {}
    for cls in run.class_of("method").__mro__:
        if not issubclass(cls, base) or is_public(file := Path(inspect.getfile(cls)).resolve()):
            continue
        parts = cls.__module__.split(".")
        found["/".join(parts) + ".py"] = file
        for depth in range(1, len(parts)):
            found["/".join([*parts[:depth], "__init__.py"])] = file.parents[len(parts) - 1 - depth] / "__init__.py"
    return found
