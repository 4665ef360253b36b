"""The plan of a suite, kept as plain data, so that it can be looked at without importing its classes.

To plan runs is to read the defaults of constructors, which imports PyTorch and takes seconds. A plan follows from files
alone; it is kept in the user's cache under the digest of all of them, and is found there as long as none has changed.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmark import ROOT
from benchmark.config import Run, RunConfig, Runtime, identity
from benchmark.files import write_atomic
from benchmark.registry import KINDS, ClassSpec
from benchmark.suites.plan import Plan
from benchmark.suites.suite import Suite

OURS = tuple(kind.package for kind in KINDS.values())
MAKERS = ("jsonargparse", "numpy", "pandas", "scipy", "matplotlib", "tabulate")  # of values, and of what tables show


def plan(suite: Suite, scale: str, seeds: Sequence[int], runtime: Runtime) -> Plan:
    """``suite.plan``, from the cache where it is there; it is put there otherwise, if all classes are of this package.

    Raises:
        ConfigError: as ``suite.plan``.
    """
    file = _cache() / f"{suite.paper}-{scale}-{digest(suite, scale, seeds)}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or none that can be read
        return _read(json.loads(file.read_text(encoding="utf-8")), suite, scale, runtime)
    made = suite.plan(scale, seeds, runtime)
    if is_ours(made):
        with suppress(OSError):  # a home that cannot be written
            file.parent.mkdir(parents=True, exist_ok=True)
            for old in file.parent.glob(f"{suite.paper}-{scale}-{'?' * 32}.json"):
                old.unlink(missing_ok=True)
            write_atomic(file, json.dumps(_written(made, suite)))
    return made


def _cache() -> Path:
    """Where programs keep for the user what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fssl-bench" / "plans"


def is_ours(made: Plan) -> bool:
    """Whether all classes of a plan are of this package; the code of others may change unseen."""
    paths = {getattr(run.config, slot).class_path for run in made.runs.values() for slot in KINDS}
    return all(path.partition(".")[0] in OURS for path in paths)


def digest(suite: Suite, scale: str, seeds: Sequence[int] = ()) -> str:
    """Of everything that a plan, and a table made of its records, follows from: our code, the suite's files, and the
    versions of the packages that convert values and write tables.
    """
    given = [list(seeds), sys.version, [version(name) for name in MAKERS], str(suite.folder.resolve())]
    total = hashlib.sha256(json.dumps(given).encode())
    own = (file for package in (*OURS, "benchmark") for file in sorted((ROOT / package).rglob("*.py")))
    for file in (*own, *suite.files(scale)):
        content = file.read_bytes() if file.exists() else b""
        total.update(f"\n{file.name} {file.exists()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:32]


def _written(made: Plan, suite: Suite) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "runs": [[key, identity(run.config), run.cells] for key, run in made.runs.items()],
        "of_row": {
            number: list(made.of_row[id(row)].items())
            for number, row in enumerate(suite.rows)
            if id(row) in made.of_row
        },
        "seeds": made.seeds,
    }


def _read(found: Mapping[str, Any], suite: Suite, scale: str, runtime: Runtime) -> Plan:
    """The plan that ``_written`` has written."""
    rows = suite.rows
    runs = {key: Run(key, _config(values, runtime), tuple(cells)) for key, values, cells in found["runs"]}
    of_row = {id(rows[int(number)]): dict(seeds) for number, seeds in found["of_row"].items()}
    return Plan(scale, runs, of_row, tuple(found["seeds"]))


def _config(values: Mapping[str, Any], runtime: Runtime) -> RunConfig:
    specs = {slot: ClassSpec(**values[slot]) for slot in KINDS}
    return RunConfig(**{**values, **specs, "runtime": runtime})
