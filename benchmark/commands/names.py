"""``list``: which methods, data sets and networks there are."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import refuse
from benchmark.registry import KINDS, find_class, known_names

ABOUT = "List the methods, the data sets or the networks, each with the first line of its documentation."


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("what", type=Literal["methods", "data", "models"], help="what to list")


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Carry the command out; returns its exit code."""
    refuse(dotted, "list")
    found: dict[str, Any]
    if options.what == "models":
        from methods.models import MODELS

        found = dict(MODELS)
    elif options.what == "methods":
        found = {name: find_class(name, KINDS["method"]) for name in known_names(KINDS["method"])}
    else:  # a data set's module says what it is, its class how it is used
        found = {name: inspect.getmodule(find_class(name, KINDS["data"])) for name in known_names(KINDS["data"])}
    width = max(map(len, found))
    for name, thing in found.items():
        print(f"{name:<{width}}  {_about(thing)}")
    return 0


def _about(thing: Any) -> str:
    """First line of a docstring, and the arguments that a name stands for."""
    arguments = ""
    if isinstance(thing, partial):
        arguments = " (" + ", ".join(f"{name}={value}" for name, value in thing.keywords.items()) + ")"
        thing = thing.func
    return (inspect.getdoc(thing) or "").partition("\n")[0] + arguments
