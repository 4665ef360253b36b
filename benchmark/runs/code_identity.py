"""Which code made a run: the version of this package, and a digest of the method's source."""

import ast
import hashlib
import inspect
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from benchmark import ROOT
from benchmark.config import Run
from benchmark.registry import KINDS, imported
from benchmark.runs.records import Record, method_sources

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
    """Digest of the code of a run's method (``source_digest``)."""
    return source_digest(run.class_of("method"), imported(KINDS["method"].base))


def by_other_code(run: Run, record: Record) -> bool:
    """Whether a run, or part of it, was made by other code of its method than is there now."""
    now = method_source(run)
    return now is not None and any(made != now for made in method_sources(record))


@cache
def source_digest(cls: type, base: type) -> str | None:
    """Digest of a class's code: of the files that define it and its bases, without docstrings and comments.

    What only says how a run may be executed (``uploads_needed``) is left out, too.

    Args:
        cls: for instance a method.
        base: the framework's class; its code, and that of its own bases, is left out.

    Returns:
        Twelve hexadecimal digits; ``None`` where there is no source to read, as in some notebooks.
    """
    own = [one for one in cls.__mro__ if issubclass(one, base) and one is not base]
    try:
        sources = [inspect.getsource(sys.modules[name]) for name in dict.fromkeys(one.__module__ for one in own)]
    except (OSError, TypeError, KeyError):
        return None
    code = "\n".join(ast.unparse(_what_counts(ast.parse(source))) for source in sources)
    return hashlib.sha256(code.encode()).hexdigest()[:12]


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
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
