"""Import of external code by dotted path, with one error that says where it is broken."""

import importlib
import sys
import traceback
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from datamodules.common.errors import ConfigError

BELOW = {*sys.stdlib_module_names, "benchmark", "methods", "datamodules", "lightning", "numpy", "torch"}
"""Packages that users' code builds on."""


def plugin(path: str, what: str) -> Any:
    """Import the object with a dotted path.

    Args:
        path: module and name, such as ``my_package.mine.Mine``.
        what: start of the error message, such as ``method 'my_package.mine.Mine'``.

    Raises:
        ConfigError: no such module or name, or importing the module fails; gives file and line.
    """
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module_name:
        raise ConfigError(f"{what} is not a dotted path such as my_package.mine.Mine")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        absent = path.startswith(f"{error.name}.")
        hint = "; the folder it lies in must be on PYTHONPATH" if absent else f" ({place(error)})"
        raise ConfigError(f"{what} cannot be imported: {error}{hint}") from None
    except SyntaxError as error:
        raise ConfigError(f"{what} cannot be imported: {error.msg} ({error.filename}:{error.lineno})") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error} ({place(error)})") from error
    if not hasattr(module, name):
        close = get_close_matches(name, vars(module), n=1, cutoff=0.6)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"{what} cannot be imported: module '{module_name}' has no attribute '{name}'{hint}")
    return getattr(module, name)


def place(error: BaseException) -> str:
    """Return the file and line where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "no line"


def users_place(error: BaseException, modules: Collection[str] = ()) -> str:
    """Return file and line of the innermost frame of users' code in an error's traceback; empty if there is none.

    Args:
        error: for instance raised in a user's hook, or in a library or this package when the hook called it.
        modules: names of this repository's modules that count as users' code if there is no other.
    """
    users, ours = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):  # the innermost frame is the last
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in BELOW:
            users = f"{frame.f_code.co_filename}:{line}"
        elif module in modules:
            ours = f"{frame.f_code.co_filename}:{line}"
    return users or ours
