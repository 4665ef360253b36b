"""What the arguments of a class mean, in the words of its docstrings."""

import json
import re
from dataclasses import dataclass

from benchmark.arguments import options_of, parser_of, type_in_words, type_of, without_default
from benchmark.registry import KINDS, one_line


@dataclass(frozen=True)
class Argument:
    """An argument for people: type and default as a command line has them, and what it means (may be empty)."""

    type: str
    default: str
    text: str


def described(cls: type, slot: str) -> dict[str, Argument]:
    """The arguments of ``cls.__init__`` (bases included) that a configuration may give, by name.

    What one means is its line under ``Args:``, or else its rows in a table of hyperparameters, of ``cls`` or a base.
    """
    rows, required, found = _table_rows(cls), without_default(cls), {}
    for option in options_of(parser_of(cls, KINDS[slot].supplied)):
        if option.dest != "help":
            default = option.default if isinstance(option.default, str) else json.dumps(option.default, default=str)
            default = "required" if option.dest in required else f"default {default}"
            text = one_line(option.help or rows.get(option.dest, ""))
            found[option.dest] = Argument(type_in_words(type_of(option)), default, text)
    return found


def _table_rows(cls: type) -> dict[str, str]:
    """Rows of the hyperparameter tables in the docstrings of a class and its bases, by the arguments that they name."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        lines = [line.strip(" |").split(" | ") for line in (base.__doc__ or "").splitlines() if line.strip()[:1] == "|"]
        own: dict[str, list[str]] = {}
        if lines and lines[0][0] == "hyperparameter":
            for first, *cells in lines[1:]:
                told = "; ".join(f"{of} {cell.strip()}" for of, cell in zip(lines[0][1:], cells, strict=False))
                for name in re.findall(r"``(\w+)``", first):
                    own.setdefault(name, []).append(told if first == f"``{name}``" else f"{first}: {told}")
        found = {name: ". ".join(rows) for name, rows in own.items()} | found
    return found
