"""Learning curves of runs, and of a suite's rows averaged over seeds."""

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from benchmark.config import Runtime, spelled
from benchmark.report.curves import AXES, Curve, read_curve
from benchmark.runs.records import Record, Row, read_record
from benchmark.runs.states import state_of
from benchmark.suites.plan import Row as TableRow
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

PERCENT = ("acc", "acc_by_class", "acc_clients", "acc_worst_clients", "auc", "precision", "recall")
FORMATS = (".png", ".svg", ".pdf", ".jpg")
STYLES = ("-", "--", ":", "-.")
FEW = 12  # up to this many rows are marked individually
NAMED = 20  # maximum number of list entries in a legend
OPTIONS = 3  # maximum number of options in a label


def read_runs(folders: Sequence[str], labels: Sequence[str] = ()) -> dict[str, Curve]:
    """Read curves of single runs by label.

    Args:
        folders: folders of the runs, e.g. ``results/runs/<run>``.
        labels: a name per run; default: the method and what distinguishes its runs (``default_labels``).

    Raises:
        ConfigError: no run in a folder, labels and runs differ in number, or the same label for two runs.
        RunError: a record is damaged.
    """
    for path in folders:
        if not Path(path, "record.json").is_file():
            raise ConfigError(f"plot: there is no run at {path}; name folders that hold a record.json")
    names = list(labels) or default_labels([read_record(Path(path)) for path in folders])
    _named_once(names, len(folders))
    return {name: read_curve([Path(path)]) for name, path in zip(names, folders, strict=True)}


def read_suite_rows(
    suite: Suite, names: Sequence[str], scale: str, results_dir: str, labels: Sequence[str] = ()
) -> dict[str, Curve]:
    """Read curves of a suite's rows by label, in the order of the suite, averaged over complete seeds.

    Args:
        suite: suite with the rows.
        names: names of rows, as for ``Suite.row``, or patterns such as ``1/CIFAR-100/*``.
        scale: scale of the suite.
        results_dir: folder that holds ``runs/``.
        labels: a name per row; default: the method, and the columns in which rows of the same method differ.

    Raises:
        ConfigError: no such row, a row without complete runs, or labels that do not match.
        RunError: a record is damaged.
    """
    found = [suite.matching([name], scale) if "*" in name else [suite.row(name, scale)] for name in names]
    chosen = {id(row) for rows in found for row in rows}
    rows = [row for row in suite.rows if id(row) in chosen]
    runs = {id(row): _complete_runs(suite, row, scale, results_dir) for row in rows}
    empty = [row.full_name for row in rows if not runs[id(row)] and {row.full_name, row.name} & set(names)]
    rows = [row for row in rows if runs[id(row)]]
    if empty or not rows:
        raise ConfigError(
            f"plot: no complete run of {', '.join(empty or names)} at scale {scale} in {results_dir}; "
            f"`table --paper {suite.argument} --scale {scale}` creates them"
        )
    given = list(labels) or row_labels(rows)
    _named_once(given, len(rows))
    return {label: read_curve(runs[id(row)]) for label, row in zip(given, rows, strict=True)}


def _complete_runs(suite: Suite, row: TableRow, scale: str, results_dir: str) -> list[Path]:
    runs = suite.runs(row, scale, runtime=Runtime(results_dir=results_dir))
    return [run.folder for run in runs.values() if state_of(run).state == "complete"]


def row_labels(rows: Sequence[TableRow]) -> list[str]:
    """Name rows by method, plus the table, data set or columns in which rows of the same method differ."""
    facts = [{"table": row.table, "data": row.dataset, **row.columns} for row in rows]
    labels = []
    for row, own in zip(rows, facts, strict=True):
        peers = [other for peer, other in zip(rows, facts, strict=True) if peer.method == row.method]
        told = [f"{key}={value}" for key, value in own.items() if len({peer.get(key) for peer in peers}) > 1]
        labels.append(f"{row.method} ({', '.join(told)})" if told else row.method)
    return labels


def _named_once(names: Sequence[str], count: int) -> None:
    if len(names) != count:
        raise ConfigError(f"--labels: {len(names)} for {count} curves; give one per curve, separated by commas")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"plot: two curves are called {name!r}; give them different names with --labels")


def default_labels(records: Sequence[Record]) -> list[str]:
    """Name runs by method, data set if there are several, and the first options in which the method's runs differ.

    Runs that still share a name also get their id.
    """
    several = len({record["dataset"] for record in records}) > 1
    labels = []
    for record in records:
        own = spelled(record["config"])
        peers = [spelled(other["config"]) for other in records if other["method"] == record["method"]]
        apart = [key for key in own if any(peer.get(key, own[key]) != own[key] for peer in peers)]
        apart = [key for key in apart if not key.endswith("class_path") and not isinstance(own[key], list)]
        told = [record["dataset"]] * several
        told += [f"{key.rpartition('.')[2]}={own[key]}" for key in apart[:OPTIONS]] + ["…"] * (len(apart) > OPTIONS)
        labels.append(f"{record['method']} ({', '.join(told)})" if told else record["method"])
    return [
        f"{label} {record['run_id']}" if labels.count(label) > 1 else label
        for label, record in zip(labels, records, strict=True)
    ]


def learning_curves(runs: Mapping[str, Curve], columns: Sequence[str], path: str | Path, axis: str = "round") -> Path:
    """Draw columns of the records (``draw_learning_curves``) and write the figure.

    Args:
        runs: curves by label (``read_runs``, ``read_suite_rows``).
        columns: what to draw.
        path: file to write; its suffix gives the format (``.png``, ``.svg``, ``.pdf``, ``.jpg``).
        axis: what to draw against.

    Raises:
        ConfigError: see ``draw_learning_curves``, or ``path`` cannot be written.
    """
    path = writable(path, "--out")
    draw_learning_curves(runs, columns, axis).savefig(path)
    return path


@rc_context({"text.parse_math": False})  # names may have dollar signs
def draw_learning_curves(runs: Mapping[str, Curve], columns: Sequence[str], axis: str = "round") -> Figure:
    """Draw columns of the records against the 0-based round or its cost.

    Args:
        runs: curves by label; averages over seeds get a band of one standard deviation.
        columns: what to draw, e.g. ``acc`` or ``pseudo/selected``: a panel per column, a line per curve. A column with
            a list per row (one value per class) gives a panel per curve and a line per entry; more than 20 entries get
            no legend. Rows without a column, or without the axis, leave a gap; a curve without it is left out.
        axis: ``round``, ``bytes`` (up and down) or ``seconds``, both since the first round.

    Raises:
        ConfigError: no curve has a column (lists the known ones) together with the axis, or there is nothing to draw.
    """
    filled = {key for curve in runs.values() for row in curve.rows for key, value in row.items() if value is not None}
    known = sorted(filled - {"round", "timing"})
    for column in columns:
        if column not in known:
            raise ConfigError(f"plot: no run has a column {column!r}; there are {', '.join(known) or 'none'}")
    if not columns:
        raise ConfigError("plot: no column to draw; name one or more, e.g. acc")
    if axis not in filled:
        raise ConfigError(f"--axis {axis}: choose one of {', '.join(AXES)} that the rows of the runs have")
    plan: list[tuple[str, list[str], bool]] = []
    for column in columns:
        names = [name for name, curve in runs.items() if any(_has(row, column) and axis in row for row in curve.rows)]
        if not names:
            raise ConfigError(f"--axis {axis}: no row of the runs has it and a {column!r}")
        lists = any(isinstance(row.get(column), list) for curve in runs.values() for row in curve.rows)
        plan += [(column, [name], True) for name in names] if lists else [(column, names, False)]

    together = any(not lists for _, _, lists in plan)
    beside = max(1, 100 // (max(map(len, runs)) + 8))
    below = 0.2 * math.ceil(len(runs) / beside) if together else 0.0
    figure = Figure(figsize=(7.5, 2.7 * len(plan) + 0.4 + below), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(plan), squeeze=False, sharex=True)[:, 0]
    first: dict[str, Any] = {}
    handles: dict[str, Any] = {}
    numbers = {name: number for number, name in enumerate(runs)}
    for panel, (column, names, lists) in zip(panels, plan, strict=True):
        if lists:
            if column in first:
                panel.sharey(first[column])
            _entries(panel, runs[names[0]].rows, column, axis, legend=column not in first)
            panel.set_title(names[0], fontsize="small", loc="left")
        else:
            for name in names:
                style = {"color": f"C{numbers[name] % 10}", "linestyle": STYLES[numbers[name] // 10 % len(STYLES)]}
                (handles[name],) = draw_curve(panel, runs[name], column, axis, label=name, linewidth=1.5, **style)
        first.setdefault(column, panel)
        panel.set_ylabel(f"{column} (%)" if column in PERCENT else column)
        panel.grid(alpha=0.3)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if axis == "bytes":
            panel.xaxis.set_major_formatter(EngFormatter("B"))
    panels[-1].set_xlabel(axis)
    if together:
        shown = [handles[name] for name in runs if name in handles]
        figure.legend(handles=shown, loc="outside lower center", ncols=beside, fontsize="small", frameon=False)
    return figure


def svg_text(figure: Figure, about: str | None = None) -> str:
    """Return the figure as SVG, with an optional description; equal figures give equal text.

    Lines are rounded to hundredths of a point, which is invisible and saves at least a quarter of the file.
    """
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "fssl-bench"}):  # makes ids deterministic
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Description": about})
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text.getvalue())


def _has(row: Row, column: str) -> bool:
    return row.get(column) is not None


def writable(path: str | Path, option: str, formats: Sequence[str] = FORMATS) -> Path:
    """Return ``path`` if a file can be written there.

    Args:
        path: file to write, which may exist.
        option: option that gave the path, for the message.
        formats: allowed suffixes; empty: any.

    Raises:
        ConfigError: the suffix is not allowed, the folder does not exist, or it is not writable.
    """
    file = Path(path)
    if formats and file.suffix.lower() not in formats:
        raise ConfigError(f"{option} {path}: the suffix gives the format; use one of {', '.join(formats)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {file.parent}; make it first, or name another")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: cannot be written there; name another file")
    return file


def draw_curve(panel: Any, curve: Curve, column: str, axis: str, **style: Any) -> list[Any]:
    """Draw the mean of a numeric column and, with several seeds, a band of one standard deviation.

    In warm-up rounds a loss is that of another method: its curve gets a gap and a dotted line where they end.
    """
    end = warmup_end(curve) if "loss" in column else None
    if end is None:
        lines = _lines(panel, curve.rows, column, axis, **style)
    else:
        gap = {axis: curve.rows[end][axis], column: None}
        lines = _lines(panel, [*curve.rows[:end], gap, *curve.rows[end:]], column, axis, **style)
        _mark(panel, curve.rows[end][axis], lines[0].get_color())
    if curve.spread:
        x, mean, std = (
            np.array([row.get(name) for row in rows], dtype=float)
            for rows, name in ((curve.rows, axis), (curve.rows, column), (curve.spread, column))
        )
        panel.fill_between(x, mean - std, mean + std, color=lines[0].get_color(), alpha=0.18, linewidth=0)
    return lines


def warmup_end(curve: Curve) -> int | None:
    """Return the position of the first row after the warm-up; ``None`` if no row or every row is in it."""
    own = [number for number, row in enumerate(curve.rows) if not row.get("warmup")]
    return own[0] if own and own[0] else None


def _mark(panel: Any, place: float, colour: Any) -> None:
    """Draw a dotted line where a warm-up ends; the first one in a panel is labelled."""
    panel.axvline(place, color=colour, linestyle=":", linewidth=1)
    if not panel.texts:
        about = " warm-up ends: another loss "
        panel.text(place, 0.97, about, transform=panel.get_xaxis_transform(), va="top", fontsize="x-small")


def _entries(panel: Any, rows: Sequence[Row], column: str, axis: str, legend: bool) -> None:
    """Draw a line per entry of a list, each in its own colour."""
    lines = _lines(panel, rows, column, axis)
    word = "class" if column.endswith("_by_class") else "entry"
    for number, line in enumerate(lines):
        few = "tab10" if len(lines) <= 10 else "tab20"
        colour = colormaps[few](number) if len(lines) <= NAMED else colormaps["viridis"](number / (len(lines) - 1))
        line.set(color=colour, label=f"{word} {number}", linewidth=1.3 if len(lines) <= NAMED else 0.8)
    if legend and len(lines) <= NAMED:
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=1 + (len(lines) > 10), fontsize="x-small")


def _lines(panel: Any, rows: Sequence[Row], column: str, axis: str, **style: Any) -> list[Any]:
    """Draw curves with gaps where values are missing, and markers for isolated points."""
    values = [row.get(column) for row in rows]
    table = [value if isinstance(value, list) else [value] for value in values]
    shown = np.full((len(table), max(map(len, table))), np.nan)
    for row, entries in enumerate(table):
        shown[row, : len(entries)] = np.array(entries, dtype=float)  # None becomes NaN
    lines: list[Any] = panel.plot(np.array([row.get(axis) for row in rows], dtype=float), shown, **style)
    for line, curve in zip(lines, np.isfinite(shown.T), strict=True):
        around = np.pad(curve, 1)
        marked = curve if len(rows) <= FEW else curve & ~around[:-2] & ~around[2:]
        if marked.any():
            line.set(marker="o", markersize=3.5, markevery=np.flatnonzero(marked).tolist())
    return lines
