"""Tables of a suite, their rows with the published values, and the runs behind these."""

import csv
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from benchmark.config import Run
from benchmark.runs.states import Digests, RunState, state_of
from benchmark.suites.schema import TableSpec
from datamodules.common.errors import ConfigError

PUBLISHED_COLUMNS = ("table", "dataset", "method", "metric", "value")


@dataclass(frozen=True)
class Row:
    """One line of a table, for all its metrics.

    Args:
        table: number of the table.
        dataset: label of the data set, as published.
        method: label of the method, as published.
        columns: further columns that tell the row apart, as published.
        options: what the row changes in the configuration.
    """

    table: str
    dataset: str
    method: str
    columns: dict[str, str]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """``table/dataset/method``, what ``--only`` matches."""
        return f"{self.table}/{self.dataset}/{self.method}"

    @property
    def full_name(self) -> str:
        """The name with the columns that distinguish rows of that name: ``1/digits/mine/partition=iid``."""
        return "/".join([self.name, *(f"{column}={value}" for column, value in self.columns.items())])

    def key(self, metric: str) -> tuple[str, str, str, tuple[tuple[str, str], ...], str]:
        """What identifies a published value of the row."""
        return self.table, self.dataset, self.method, tuple(sorted(self.columns.items())), metric


class Table(TableSpec):
    """One table of the paper.

    Args:
        number: its number, or its name.
        rows: its rows.
    """

    number: str
    rows: tuple[Row, ...]

    @property
    def untested(self) -> set[str]:
        """Labels of bounds and controls: rows that are shown, and neither tested nor ranked."""
        return {*self.bounds, *self.controls.values()} - {self.reference}


@dataclass
class Plan:
    """The runs of a suite at a scale.

    Args:
        scale: name of the scale.
        runs: by run id, in the order of the tables.
        of_row: run ids by seed, for each row that is run, by ``Row.full_name``.
        seeds: seeds in order.
        rounds: their number where it is not the suite's; such runs are not compared, with a paper or with each other.
    """

    scale: str
    runs: dict[str, Run]
    of_row: dict[str, dict[int, str]]
    seeds: tuple[int, ...]
    rounds: int | None = None

    @cached_property
    def found(self) -> dict[str, RunState]:
        """State and record of every run, by id, read from disk when they are first asked for."""
        return self._states(self.runs)

    def look_again(self, changed: Collection[Run] = ()) -> None:
        """Read the runs again that were not complete, and those that have changed since."""
        again = {run.id for run in changed} | {key for key, run in self.found.items() if run.state != "complete"}
        self.found |= self._states(again)

    def _states(self, keys: Iterable[str]) -> dict[str, RunState]:
        digests: Digests = {}
        return {key: state_of(self.runs[key], digests) for key in keys}

    def run(self, row: Row, seed: int) -> Run:
        """The run of a row with a seed."""
        return self.runs[self.of_row[row.full_name][seed]]


def control_of(row: Row, rows: Iterable[Row], label: str) -> Row | None:
    """The control of a row: the row of ``label`` with the same data set and the same distinguishing columns.

    ``None`` if there is not exactly one, and for the control itself.
    """
    if row.method == label:
        return None
    controls = [control for control in rows if (control.dataset, control.method) == (row.dataset, label)]
    names = {name for control in controls for name in control.columns}
    keys = [name for name in names if len({control.columns.get(name) for control in controls}) > 1]
    alike = [control for control in controls if all(control.columns.get(key) == row.columns.get(key) for key in keys)]
    return alike[0] if len(alike) == 1 else None


def read_published(path: Path) -> dict[Any, str]:
    """A published file: columns ``table``, ``dataset``, ``method``, any others, ``metric`` and ``value``.

    The printed spread over seeds, column ``std``, gets the metric's name followed by `` std``.

    Raises:
        ConfigError: it cannot be read, a column or a value is missing, or a value is no number or occurs twice.
    """
    values: dict[Any, str] = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: the published values cannot be read: {error}") from None
    for number, line in enumerate(lines, start=2):
        try:
            table, dataset, method, metric, value = (line.pop(name) for name in PUBLISHED_COLUMNS)
            if None in line:
                raise ValueError("more values than the header has columns")
            spread = line.pop("std", "")
            row = Row(table, dataset, method, {name: text for name, text in line.items() if text}, {})
            printed = {metric: value, f"{metric} std": spread} if spread else {metric: value}
            for name, text in printed.items():
                if not isfinite(float(text)) or row.key(name) in values:
                    raise ValueError(f"{row.full_name}, {name}: {text!r} is not finite, or occurs twice")
                values[row.key(name)] = text
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}, line {number}: a column or a number is missing or wrong: {error}") from None
    return values
