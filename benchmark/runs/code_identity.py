"""Which code made a run: the version of this package, and a digest of the method's source."""

import ast
import hashlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from benchmark import ROOT
from benchmark.config import Run
from benchmark.registry import KINDS, imported
from benchmark.runs.records import Record, method_sources
from datamodules.common.plugins import BELOW

CODE = ("benchmark", "methods", "datamodules")
NO_NUMBERS = ("uploads_needed",)
"""Declarations that change none of a method's numbers. Others are alike (``no_loss_scaling``), but they are part of the
digests of committed records; only a declaration that no record knows yet can be left out.
"""


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
    checkout = (ROOT / ".git").exists()
    described = _git("describe", "--always", "--tags", "--abbrev=12") if checkout else None
    if described:
        return described + ("-dirty" if _git("status", "--porcelain", "--", *CODE) else "")
    return package_version() + ("-unknown (a checkout, and no git to ask)" if checkout else "")


def method_source(run: Run) -> str | None:
    """Digest of the code of a run's method, and of the user's network and data module, if any (``source_digest``)."""
    named = (path.rpartition(".")[0] for path in (run.config.model, run.config.data.class_path) if "." in path)
    return source_digest(run.class_of("method"), imported(KINDS["method"].base), tuple(named))


def method_files(run: Run) -> dict[str, Path]:
    """The files behind a run's method alone, by module (``own_files``)."""
    return own_files(run.class_of("method"), imported(KINDS["method"].base))


def by_other_code(run: Run, record: Record) -> bool:
    """Whether a run, or part of it, was made by other code of its method than is there now."""
    now = method_source(run)
    return now is not None and any(made != now for made in method_sources(record))


@cache
def source_digest(cls: type, base: type, more: tuple[str, ...] = ()) -> str | None:
    """Digest of a class's code: of its ``own_files``, without docstrings and comments.

    What only says how a run may be executed (``uploads_needed``) is left out, too.

    Args:
        cls: for instance a method.
        base: the framework's class.
        more: as in ``own_files``.

    Returns:
        Twelve hexadecimal digits; ``None`` where there is no source to read, as in some notebooks.
    """
    try:
        sources = [file.read_bytes() for file in own_files(cls, base, more).values()]
    except (OSError, TypeError, KeyError):
        return None
    code = "\n".join(ast.unparse(_what_counts(ast.parse(source))) for source in sources)
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def own_files(cls: type, base: type, more: Sequence[str] = ()) -> dict[str, Path]:
    """The files behind a class, by module: those of itself and its bases, and the user's modules that they import.

    Imports count wherever they stand, in a function too. Of this repository and of installed packages, only the files
    of bases count.

    Args:
        cls: for instance a method.
        base: the framework's class; its file, and those of its own bases, are left out.
        more: modules that count, with their imports, if they are the user's.

    Raises:
        OSError, TypeError, KeyError: there is no source to read, as in some notebooks.
    """
    classes = [one for one in cls.__mro__ if issubclass(one, base) and one is not base]
    found = {one.__module__: Path(inspect.getfile(one)).resolve() for one in classes}
    names = list(more)
    for module, file in found.items():
        names += _imports(file, sys.modules[module].__package__ or "")
    while names:
        spec = _users(names.pop(0))
        if spec is not None and spec.name not in found:
            found[spec.name] = Path(str(spec.origin)).resolve()
            names += _imports(found[spec.name], spec.parent or "")
    return found


def _imports(file: Path, package: str) -> Iterator[str]:
    """Names that a file of this package imports: modules, and whatever else it takes from them."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (start, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _users(name: str) -> ModuleSpec | None:
    """The module of this name, if there is one and it is a file of the user's."""
    top = name.partition(".")[0]
    if top in BELOW:
        return None
    try:
        found = find_spec(top)
        if found is None or _is_not_users(found):
            return None
        found = find_spec(name)  # imports the packages above it
    except Exception:  # of a package whose absence the importing code may well expect
        return None
    return found if found and found.has_location and str(found.origin).endswith(".py") else None


def _is_not_users(top: ModuleSpec) -> bool:
    """Whether a module or package lies with the installed ones, or in no folder at all."""
    places = [top.origin] if top.has_location else list(top.submodule_search_locations or [])
    return not places or is_installed(Path(str(places[0])))


def is_installed(file: Path) -> bool:
    """Whether a file is part of an installed package."""
    return bool({"site-packages", "dist-packages"} & set(file.parts))


def _what_counts(tree: ast.Module) -> ast.Module:
    """The code without docstrings and without declarations that change no number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [one for one in node.body if ast.unparse(one).partition(" = ")[0] not in NO_NUMBERS]
            node.body = node.body or [ast.Pass()]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _git(*command: str) -> str | None:
    """The output of git for this checkout, whatever repository git's own variables (``GIT_DIR``) name."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, timeout=10, env=own)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
