"""A method's own row in a setting of a leaderboard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.board.checking import unfair
from benchmark.board.tune import rule
from benchmark.config import Runtime
from benchmark.registry import KINDS, find_class
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite, extend, load
from datamodules.common.errors import ConfigError
from datamodules.common.files import write_atomic
from datamodules.common.yaml import dump_yaml, read_yaml


def enter(
    paper: str,
    table: str,
    method: str,
    options: Mapping[str, Any],
    control: Mapping[str, Any],
    scale: str,
    runtime: Runtime,
) -> tuple[Suite, list[Row]]:
    """Write a suite that gives the method a row in a leaderboard, and its control another, unless it is there already.

    Args:
        paper: the leaderboard's suite.
        table: the setting.
        method: name or dotted path.
        options: of the method, such as ``{"method.lr": 0.1}``.
        control: those that switch its unlabelled loss off, likewise; empty for a row without a control.
        scale: one of the suite's.
        runtime: where the data are.

    Returns:
        The suite, with its file in ``where``, and its new rows, in the table and in the one at the paper's rates.

    Raises:
        ConfigError: the suite has no such setting or no rule of tuning, or has the label already, the file describes
            another row, the method sees labels that the setting hides, or it cannot be made.
        DataError: the data are missing.
    """
    board, label = load(paper), method.rpartition(".")[2]
    find_class(method, KINDS["method"])
    rule(board, scale)  # fails before anything is written if the scale has none
    ranked = [one.number for one in board.tables if one.reference]
    if table not in ranked:
        raise ConfigError(f"--table {table}: {board.where} compares rows in {', '.join(ranked) or 'no table'}")
    if label in board.spec.labels:
        raise ConfigError(f"{board.where} has a row {label} already: give the class of the method another name")
    names = {label: dict(options)}
    entries: dict[str, Any] = {}
    if control:
        beside = f"{label} (labels alone)"
        names[beside] = {**options, **control}
        entries["controls"] = {label: beside}
    entries["rows"] = [{"method": name, "set": of_row} for name, of_row in names.items()]
    labels = {name: {"method": method} for name in names}
    spec = {"paper": f"{board.paper}-{label}", "labels": labels, "tables": {table: entries}}
    path, written = Path(f"{board.paper}-{label}-{table}.yaml"), {"extends": paper, **spec}
    if path.exists() and read_yaml(path, "suite") != written:
        raise ConfigError(
            f"{path} describes another row than these options do; delete it, or rename it and its `paper:` to keep both"
        )
    suite = extend(board, spec, str(path), path.parent)
    rows = [row for row in suite.matching([], scale) if row.method in names]
    for row in rows:
        if unfair(suite, row, suite.run(row, scale).replace(runtime=runtime)):
            raise ConfigError(f"{label} cannot be ranked: it sees labels of unlabelled images (`uses_oracle`)")
    if not path.exists():
        write_atomic(path, dump_yaml(written))
    return suite, rows
