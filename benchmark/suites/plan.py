"""What a suite's tables consist of, and the runs behind them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmark.config import Run
from benchmark.runs.states import RunState, state_of
from datamodules.common.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """One line of a table, for all its metrics.

    Args:
        table: number of the table.
        dataset: label of the data set, as published.
        method: label of the method, as published.
        columns: further columns that tell the row apart, as published.
        options: what the row changes in the configuration.
        minus: labels ``(a, b)`` whose difference the row shows; it has no run of its own.
        pending: why the row cannot be run yet; empty where it can.
        judged_by: table whose published value the level is held against, where a paper prints a cell twice; empty: its
            own.
    """

    table: str
    dataset: str
    method: str
    columns: dict[str, str]
    options: dict[str, Any]
    minus: tuple[str, str] | None = None
    pending: str = ""
    judged_by: str = ""

    @property
    def name(self) -> str:
        """``table/dataset/method``, what ``--only`` matches."""
        return f"{self.table}/{self.dataset}/{self.method}"

    @property
    def full_name(self) -> str:
        """The name, and the columns that tell rows of one name apart: ``1/digits/mine/partition=iid``."""
        return "/".join([self.name, *(f"{column}={value}" for column, value in self.columns.items())])

    def is_named(self, text: str) -> bool:
        """Whether ``text`` is the row's name, alone or with some of its columns behind it."""
        columns = {f"{column}={value}" for column, value in self.columns.items()}
        return text == self.name or (
            text.startswith(f"{self.name}/") and set(text.removeprefix(f"{self.name}/").split("/")) <= columns
        )

    def key(self, metric: str) -> tuple[str, str, str, tuple[tuple[str, str], ...], str]:
        """What identifies a published value."""
        return self.table, self.dataset, self.method, tuple(sorted(self.columns.items())), metric


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Args:
        number: its number, or its name.
        title: what it shows.
        metrics: keys of the metrics that it has.
        rows: its lines.
        unpublished: what stands where a value is not in the published file.
        reference: label that the others are compared with, in a suite that ranks methods.
        bounds: labels that know more than a method may, and are not ranked.
        control: label of the row above which the others' effects are; empty where the table has none.
        published_runs: runs behind a printed value.
    """

    number: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    unpublished: str = "none"
    reference: str = ""
    bounds: tuple[str, ...] = ()
    control: str = ""
    published_runs: int = 1


@dataclass
class Plan:
    """The runs of a suite at a scale.

    Args:
        scale: name of the scale.
        runs: by run id, in the order of the tables.
        of_row: run ids of each row with runs of its own, by seed.
        seeds: seeds in order.
    """

    scale: str
    runs: dict[str, Run]
    of_row: dict[int, dict[int, str]]
    seeds: tuple[int, ...]

    @cached_property
    def found(self) -> dict[str, RunState]:
        """State and record of every run, by id, read from disk when they are first asked for."""
        return {key: state_of(run) for key, run in self.runs.items()}

    def look_again(self) -> None:
        """Read anew what was not complete."""
        self.found |= {key: state_of(run) for key, run in self.runs.items() if self.found[key].state != "complete"}

    def run(self, row: Row, seed: int) -> Run:
        """The run behind a row."""
        return self.runs[self.of_row[id(row)][seed]]


def operands(row: Row, rows: Iterable[Row]) -> tuple[Row, Row]:
    """The two rows whose difference a row with ``minus`` shows: same table, data set and columns."""
    assert row.minus is not None
    where = (row.table, row.dataset, row.columns)
    same = {r.method: r for r in rows if (r.table, r.dataset, r.columns) == where}
    missing = [label for label in row.minus if label not in same]
    if missing:
        raise ConfigError(f"{row.name}: the table has no row {missing[0]} with the columns {row.columns}")
    first, second = row.minus
    return same[first], same[second]


def control_of(row: Row, rows: Iterable[Row], label: str) -> Row | None:
    """The row of the control ``label`` that belongs to a row: same data set, and the columns that tell controls apart.

    ``None`` where there is not exactly one, and for the control itself and a difference of two rows.
    """
    if row.method == label or row.minus:
        return None
    controls = [one for one in rows if (one.dataset, one.method) == (row.dataset, label)]
    names = {name for one in controls for name in one.columns}
    telling = [name for name in names if len({one.columns.get(name) for one in controls}) > 1]
    found = [one for one in controls if all(one.columns.get(name) == row.columns.get(name) for name in telling)]
    return found[0] if len(found) == 1 else None
