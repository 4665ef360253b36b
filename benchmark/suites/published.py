"""Published values: the numbers printed in papers, as data."""

import csv
from math import isfinite
from pathlib import Path
from typing import Any

from benchmark.suites.plan import Row
from datamodules.common.errors import ConfigError

NAMED_COLUMNS = ("table", "dataset", "method", "metric", "value")


def read_published(path: Path) -> dict[Any, str]:
    """A published file: columns ``table``, ``dataset``, ``method``, any others, ``metric`` and ``value``.

    The printed spread over seeds, column ``std``, gets the metric's name followed by `` std``.

    Raises:
        ConfigError: it cannot be read, or a value is no number or occurs twice.
    """
    values: dict[Any, str] = {}
    for line in _published_lines(path):
        named = {name: line.pop(name) for name in NAMED_COLUMNS}
        spread = line.pop("std", "")
        columns = {name: value for name, value in line.items() if value}
        row = Row(named["table"], named["dataset"], named["method"], columns, {})
        key = row.key(named["metric"])
        if key in values:
            raise ConfigError(f"{path}: two values for {row.name} {named['metric']} {columns}")
        values[key] = named["value"]
        if spread:
            values[row.key(f"{named['metric']} std")] = spread
    return values


def _published_lines(path: Path) -> list[dict[str, str]]:
    """Lines of a published file by column, checked.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has a line of another length or a value that is no
            number.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            table = csv.DictReader(file, strict=True)
            columns, lines = table.fieldnames or (), list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: the published values cannot be read: {error}") from None
    if missing := [name for name in NAMED_COLUMNS if name not in columns]:
        raise ConfigError(f"{path}: the column {missing[0]} is missing; there are {', '.join(columns) or 'none'}")
    for number, line in enumerate(lines, start=2):
        if None in line or None in line.values():
            raise ConfigError(f"{path}, line {number}: it has not {len(columns)} values, as the header has columns")
        for name in ("value", "std"):
            if not _is_number(line.get(name) or "0") or (name == "value" and not line[name]):
                raise ConfigError(f"{path}, line {number}: {name} is {line[name]!r}; print a number")
    return lines


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
