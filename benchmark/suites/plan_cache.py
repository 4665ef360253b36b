"""A cache of suites' plans, as plain data that can be read without importing the classes of the runs.

Planning reads the defaults of constructors, which imports PyTorch and takes seconds. But a plan depends on files and
installed packages only, so it is kept in the user's cache under the digest of all of them.
"""

import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from benchmark import ROOT
from benchmark.config import Run, RunConfig, Runtime, identity
from benchmark.files import write_atomic
from benchmark.registry import KINDS, ClassSpec
from benchmark.suites.plan import Plan
from benchmark.suites.suite import Suite

OURS = tuple(kind.package for kind in KINDS.values())


def plan(suite: Suite, scale: str, seeds: Sequence[int], runtime: Runtime) -> Plan:
    """``suite.plan``, from the cache if it is there. Otherwise it is stored, if all classes are of this package.

    Raises:
        ConfigError: as ``suite.plan``.
    """
    cache = _cache()
    if cache is None:
        return suite.plan(scale, seeds, runtime)
    file = cache / f"{suite.paper}-{scale}-{digest(suite, scale, seeds)}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or unreadable
        return _read(json.loads(file.read_text(encoding="utf-8")), scale, runtime)
    made = suite.plan(scale, seeds, runtime)
    if is_ours(made):
        with suppress(OSError):  # the cache cannot be written
            file.parent.mkdir(parents=True, exist_ok=True)
            for old in file.parent.glob(f"{suite.paper}-{scale}-{'?' * 32}.json"):
                old.unlink(missing_ok=True)
            write_atomic(file, json.dumps(_written(made)))
    return made


def _cache() -> Path | None:
    """The folder of the cache, below the user's own (XDG); ``None`` without a home, as in some containers."""
    try:
        users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return users / "fssl-bench" / "plans"


def is_ours(made: Plan) -> bool:
    """Whether all classes of a plan are of this package; changes in others' code would go unnoticed."""
    paths = {getattr(run.config, slot).class_path for run in made.runs.values() for slot in KINDS}
    return all(path.partition(".")[0] in OURS for path in paths)


def digest(suite: Suite, scale: str, seeds: Sequence[int] = ()) -> str:
    """Digest of everything that a plan, and a table of its records, follows from: the code of this package, the suite's
    files, and the versions of Python and of all dependencies.
    """
    given = [list(seeds), sys.version, _dependencies(), str(suite.folder.resolve())]
    total = hashlib.sha256(json.dumps(given).encode())
    own = (file for package in (*OURS, "benchmark") for file in sorted((ROOT / package).rglob("*.py")))
    for file in (*own, *suite.files(scale)):
        content = file.read_bytes() if file.exists() else b""
        total.update(f"\n{file.name} {file.exists()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:32]


def _dependencies() -> dict[str, str]:
    """Versions of the packages that this one depends on, read without importing them."""
    try:
        required = requires("fssl-bench") or []
    except PackageNotFoundError:  # a checkout that is not installed
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        required = project["dependencies"]
    names = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in required if "extra ==" not in one]
    found = dict.fromkeys(names, "none")
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _written(made: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "runs": [[key, identity(run.config), run.cells] for key, run in made.runs.items()],
        "of_row": {name: list(ids.items()) for name, ids in made.of_row.items()},
        "seeds": made.seeds,
    }


def _read(found: Mapping[str, Any], scale: str, runtime: Runtime) -> Plan:
    """The plan that ``_written`` wrote."""
    runs = {key: Run(key, _config(values, runtime), tuple(cells)) for key, values, cells in found["runs"]}
    of_row = {name: dict(ids) for name, ids in found["of_row"].items()}
    return Plan(scale, runs, of_row, tuple(found["seeds"]))


def _config(values: Mapping[str, Any], runtime: Runtime) -> RunConfig:
    specs = {slot: ClassSpec(**values[slot]) for slot in KINDS}
    return RunConfig(**{**values, **specs, "runtime": runtime})
