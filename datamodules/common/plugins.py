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
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        raise ConfigError(f"{what} is not a dotted path such as my_package.mine.Mine")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        absent = path.startswith(f"{error.name}.")
        hint = "; the folder it lies in must be on PYTHONPATH" if absent else f" ({place(error)})"
        raise ConfigError(f"{what} cannot be imported: {error}{hint}") from None
    except SyntaxError as error:
        raise ConfigError(f"{what} cannot be imported: {error.msg} ({error.filename}:{error.lineno})") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error} ({place(error)})") from error
    if not hasattr(found, name):
        close = get_close_matches(name, vars(found), n=1, cutoff=0.6)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"{what} cannot be imported: module '{module}' has no attribute '{name}'{hint}")
    return getattr(found, name)


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
    walked = traceback.walk_tb(error.__traceback__)
    lines = [(str(frame.f_globals.get("__name__")), frame.f_code.co_filename, line) for frame, line in walked]
    theirs = [one for one in lines if one[0].partition(".")[0] not in BELOW]
    found = theirs or [one for one in lines if one[0] in modules]
    return f"{found[-1][1]}:{found[-1][2]}" if found else ""
