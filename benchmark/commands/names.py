"""``list``: which methods, data sets, networks and suites there are."""

import ast
from collections.abc import Mapping
from typing import Any, Literal, get_args

from jsonargparse import ArgumentParser, Namespace

from benchmark import ROOT
from benchmark.registry import KINDS, known_names
from benchmark.runs.console import printable
from benchmark.suites.suite import SUFFIX, SUITES, available
from datamodules.common.yaml import read_yaml

ABOUT = "List methods, data sets, networks and suites, each in one line."
What = Literal["methods", "data", "models", "suites"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("what", type=What, nargs="?", help="what to list; default: all")


def run(options: Namespace) -> None:
    """Run the command."""
    for what in [options.what] if options.what else get_args(What):
        found = _found(what)
        print(f"{what}:")
        for name, about in found.items():
            print(printable(f"  {name:<{max(map(len, found))}}  {about}".rstrip()))


def _found(what: str) -> dict[str, str]:
    """Names, each with its description, read from sources because importing the classes takes seconds."""
    if what == "suites":
        return {paper: str(read_yaml(SUITES / (paper + SUFFIX), "suite").get("title", "")) for paper in available()}
    if what == "models":
        from methods.models import MODELS

        return {name: _network(path, options) for name, (path, options) in MODELS.items()}
    kind = KINDS["method" if what == "methods" else "data"]
    return {name: _first_line(f"{kind.package}.{name}") for name in known_names(kind)}


def _network(path: str, options: Mapping[str, Any]) -> str:
    """First line of a network's docstring, and the arguments that its name stands for."""
    module, _, cls = path.rpartition(".")
    arguments = ", ".join(f"{name}={value}" for name, value in options.items())
    return _first_line(f"methods.models.{module}", cls) + (f" ({arguments})" if arguments else "")


def _first_line(module: str, cls: str = "") -> str:
    """First line of the docstring of one of our modules, or of a class in it."""
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_bytes())
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    found: ast.Module | ast.ClassDef = next(classes, tree)
    return (ast.get_docstring(found) or "").partition("\n")[0].replace("``", "")
