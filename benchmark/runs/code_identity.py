"""Which code made a run: the version of the checkout, and the revision of its numbers.

Revisions are raised by hand when numbers change (``FedMethod.revision``, ``REVISION``). A test that repeats a small run
of every method says when that is due. Nobody raises a revision for classes from outside this repository, so the digest
of their source is recorded beside it.
"""

import ast
import hashlib
import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from benchmark import ROOT
from benchmark.config import Run
from benchmark.runs.records import SOURCE, Record, revisions
from datamodules.common.plugins import BELOW

REVISION = 1
"""Of the numbers that the framework and the data sets give: raised by hand when they change for some method."""

CODE = ("benchmark", "methods", "datamodules", ":!benchmark/suites/tuned", ":!benchmark/suites/admitted")
"""Where numbers come from; what ``tune`` and ``admit`` write beside suites reaches a run by its configuration alone."""
OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def package_version() -> str:
    """The version of the installed package."""
    try:
        return version("fssl-bench")
    except PackageNotFoundError:
        return "unknown"


def code_version() -> str:
    """``git describe`` of the checkout, marked ``-dirty`` if its code differs, else the package's version.

    A checkout that git cannot describe is marked ``-unknown``: its code may be anything.
    """
    if not (ROOT / ".git").exists():
        return package_version()
    described = _git("describe", "--always", "--tags", "--abbrev=12")
    if not described:
        return f"{package_version()}-unknown (a checkout, and no git to ask)"
    changed = _git("status", "--porcelain", "--", *CODE)
    return described.strip() + ("-unknown" if changed is None else "-dirty" if changed else "")


def uncommitted() -> dict[str, str]:
    """The difference between the checkout's code and its commit, as a patch under the name of its file, if any."""
    diff = ("diff", "--no-ext-diff", "--no-color")
    patch = _git(*diff, "HEAD", "--", *CODE) or ""
    new = _git("ls-files", "-z", "--others", "--exclude-standard", "--", *CODE) or ""
    for name in filter(None, new.split("\0")):
        patch += _git(*diff, "--no-index", "--", os.devnull, name) or ""
    digest = hashlib.sha256(patch.encode()).hexdigest()[:12]
    return {f"uncommitted-{digest}.patch": patch} if patch else {}


def revision(run: Run) -> str:
    """Revision of a run's numbers: that of its method, that of the framework, and the digest of ``users_source``."""
    method: Any = run.class_of("method")
    source = users_source(run)
    return f"method {method.revision}, framework {REVISION}" + (f"{SOURCE}{source}" if source else "")


def by_other_code(run: Run, record: Record, source: bool = True) -> bool:
    """Whether a run, or part of it, has another revision than it would have now, or other ``source`` of the user's.

    Without ``source`` the revision alone counts.
    """
    names = [*revisions(record), revision(run)]
    if not source:
        names = [name.partition(SOURCE)[0] for name in names]
    return len(set(names)) > 1


def users_source(run: Run) -> str | None:
    """Digest of the files of a run's classes, network and pipeline that are not part of this repository.

    Files that these import from their own package or folder count, too.

    Returns:
        Twelve hexadecimal digits; ``None`` if there are none, or no files, as in some notebooks.
    """
    bases = [*run.class_of("method").__mro__, *run.class_of("data").__mro__]
    paths = (run.config.model, str(run.config.data.init_args.get("pipeline")))
    modules = [cls.__module__ for cls in bases] + [path.rpartition(".")[0] for path in paths]
    files: dict[str, Path] = {}
    for module in modules:  # which grow
        file = _users_file(module)
        if file and module not in files:
            files[module] = file
            modules += _imports(module, file) if file.suffix == ".py" else ()
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files.values()))
    return digest.hexdigest()[:12] if files else None


def _imports(module: str, file: Path) -> Iterator[str]:
    """What a module's source imports from its own package or folder."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # relative, for use in a package, and this is none
                continue
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            source = None if "." in name else _users_file(name)
            if (source and source.parent == file.parent) or name.partition(".")[0] == package.partition(".")[0]:
                yield name


def _users_file(module: str) -> Path | None:
    """The file of a user's module, if it has one and it is there."""
    if not module or module.partition(".")[0] in BELOW:
        return None
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):  # a package above it is missing, or a notebook is the module
        return None
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _git(*arguments: str) -> str | None:
    """What git says of this checkout; ``None`` if it fails. Variables that name another repository do not count."""
    command = ["git", "-C", str(ROOT), *arguments]
    environ = {name: value for name, value in os.environ.items() if name not in OTHER_REPOSITORY}
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, env=environ)
    except (OSError, subprocess.TimeoutExpired):
        return None
    differs = "--no-index" in arguments and done.returncode == 1
    return done.stdout if done.returncode == 0 or differs else None
