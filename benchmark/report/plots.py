"""Learning curves of runs, and of a suite's rows averaged over seeds; and the effects on a leaderboard."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmark.report.frame import rounds, rounds_of
from benchmark.report.settings import Setting, told_apart
from benchmark.runs.records import read_record
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

FORMATS = (".png", ".svg", ".pdf", ".jpg")
STYLES = ("-", "--", ":", "-.")
FEW = 12  # up to this many rounds are marked individually
INK, GRID = "#2b2d33", "#d9d9d6"


def read_runs(folders: Sequence[str], labels: Sequence[str] = ()) -> dict[str, pd.DataFrame]:
    """Read curves of single runs by label.

    Args:
        folders: folders of the runs, e.g. ``results/runs/<run>``.
        labels: a name per run; default: the methods, or the folders' names where two runs have the same method.

    Raises:
        ConfigError: labels and runs differ in number, or two runs have the same label.
        RunError: no run in a folder, or a record is damaged.
    """
    paths = [Path(folder) for folder in folders]
    methods = [str(read_record(path)["method"]) for path in paths]
    names = methods if len({*methods}) == len(methods) else [path.resolve().name for path in paths]
    return _named(labels or names, [rounds_of(path).assign(seed=0) for path in paths])


def read_suite_rows(
    suite: Suite, names: Sequence[str], scale: str, results_dir: str, labels: Sequence[str] = ()
) -> dict[str, pd.DataFrame]:
    """Read curves of a suite's rows by label, in the order of ``names``, and those of a pattern in that of the suite.

    Args:
        suite: suite with the rows.
        names: names of rows, or patterns of them, such as ``1/CIFAR-100/*``.
        scale: scale of the suite.
        results_dir: folder that holds ``runs/``.
        labels: a name per row; default: the methods, or the names of rows of the same method.

    Raises:
        ConfigError: no such row, a name without complete runs, or labels that do not match.
        RunError: a record is damaged.
    """
    matching = {row.full_name: row for name in names for row in suite.matching([name], scale)}
    curves = {name: rounds(suite, [row], scale, results_dir) for name, row in matching.items()}
    for name in names:
        if all(curves[row.full_name].empty for row in suite.matching([name], scale)):
            raise ConfigError(
                f"plot: no complete run of {name} at scale {scale} in {results_dir}; "
                f"`table --paper {suite.where} --scale {scale}` creates them"
            )
    rows = [row for name, row in matching.items() if not curves[name].empty]
    methods = [row.method for row in rows]
    defaults = [row.full_name if methods.count(row.method) > 1 else row.method for row in rows]
    return _named(labels or defaults, [curves[row.full_name] for row in rows])


def _named(names: Sequence[str], curves: Sequence[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    if len(names) != len(curves):
        raise ConfigError(f"--labels: {len(names)} for {len(curves)} curves; give one per curve, separated by commas")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"plot: two curves are called {name!r}; give them different names with --labels")
    return dict(zip(names, curves, strict=True))


@rc_context({"text.parse_math": False})  # names may have dollar signs
def learning_curves(
    runs: Mapping[str, pd.DataFrame], columns: Sequence[str], path: str | Path, axis: str = "round"
) -> Path:
    """Draw columns of the records against the 0-based round or its cost: a panel per column, a line per curve.

    A curve of several seeds is their mean over the rounds that all of them have, with a band of one standard deviation.
    Rows without a column, or without the axis, leave a gap.

    Args:
        runs: curves by label (``read_runs``, ``read_suite_rows``).
        columns: what to draw, e.g. ``acc`` or ``pseudo/selected``; columns with a list per row cannot be drawn.
        path: file to write; its suffix gives the format (``.png``, ``.svg``, ``.pdf``, ``.jpg``).
        axis: ``round``, ``bytes`` (up and down) or ``seconds``, both since the first round.

    Raises:
        ConfigError: no curve has numbers in a column or the axis (lists those that have), or another suffix.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {path}: the suffix gives the format; use one of {', '.join(FORMATS)}")
    numbers = {name: frame.select_dtypes("number") for name, frame in runs.items()}
    known = sorted({name for frame in numbers.values() for name in frame} - {"round", "seed"})
    absent = [column for column in (*columns, axis) if column not in ("round", *known)]
    if absent:
        raise ConfigError(f"plot: no run has a column {absent[0]!r} of numbers; there are {', '.join(known) or 'none'}")
    ncols = max(1, 100 // (max(map(len, runs)) + 8))  # of the legend
    legend_height = 0.2 * math.ceil(len(runs) / ncols)
    figure = Figure(figsize=(7.5, 2.7 * len(columns) + 0.4 + legend_height), dpi=150, layout="constrained")
    panels = figure.subplots(len(columns), squeeze=False, sharex=True)[:, 0]
    handles = {}
    for panel, column in zip(panels, columns, strict=True):
        for number, (name, frame) in enumerate(numbers.items()):
            if column in frame and axis in frame:
                x, mean, spread = _of_rounds(runs[name], axis, column)
                marks = {"marker": "o", "markersize": 3.5} if len(mean) <= FEW else {}
                style = STYLES[number // 10 % len(STYLES)]
                (line,) = panel.plot(x, mean, color=f"C{number % 10}", linestyle=style, label=name, **marks)
                if spread.notna().any():
                    panel.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.18, linewidth=0)
                handles[name] = line
        panel.set_ylabel(f"{column} (%)" if column.startswith(("acc", "auc", "precision", "recall")) else column)
        panel.grid(alpha=0.3)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panels[-1].set_xlabel(axis)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=ncols, fontsize="small", frameon=False)
    if path.suffix.lower() == ".svg":
        path.write_text(svg_text(figure), encoding="utf-8")
    else:
        figure.savefig(path)
    return path


def _of_rounds(curve: pd.DataFrame, axis: str, column: str) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Axis, mean and standard deviation of a column over the rounds that all seeds have; NaN where one has no value."""
    of_round, seeds = curve.groupby("round"), curve["seed"].nunique()
    shared = of_round["seed"].nunique() == seeds
    x, mean, spread = curve[axis].groupby(curve["round"]).mean(), of_round[column].mean(), of_round[column].std()
    complete = of_round[column].count() == seeds
    return x[shared], mean.where(complete)[shared], spread.where(complete)[shared]


@rc_context({"text.parse_math": False})
def draw_differences(board: Sequence[Setting]) -> Figure:
    """Draw every row's difference to its reference: a panel per setting, a line per row.

    Filled points may be called better or worse than the reference, hollow ones may not, and grey ones are bounds and
    controls, which are not tested. The bars are the simultaneous intervals, or a row's own where it is not tested. Rows
    are sorted by their difference; those with failed runs come last.
    """
    heights = [len(setting.lines) + 1 for setting in board]
    figure = Figure(figsize=(7.5, 0.24 * sum(heights) + 0.45 * len(board) + 0.6), layout="constrained")
    panels = figure.subplots(len(board), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for panel, setting in zip(panels, board, strict=True):
        _draw_panel(panel, setting)
    fills = {"told apart": "C0", "not told apart": "white", "bound or control, not tested": GRID}
    points = [Line2D([], [], marker="o", color="C0", markerfacecolor=fill, label=name) for name, fill in fills.items()]
    figure.legend(handles=points, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return figure


def _draw_panel(axes: Axes, setting: Setting) -> None:
    table = setting.table
    lines = setting.lines.drop(index=setting.reference).sort_values(["failed", "difference"], ascending=[False, True])
    half = lines["simultaneous_ci95"].fillna(lines["difference_ci95"])
    fill = [GRID if name in table.untested else "C0" if told_apart(setting, name) else "white" for name in lines.index]
    y = range(len(lines))
    axes.errorbar(lines["difference"], y, xerr=half, fmt="none", ecolor="C0", elinewidth=1.2)
    axes.scatter(lines["difference"], y, s=22, color=fill, edgecolors="C0", linewidths=1.2, zorder=3)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(y, [f"{name} (bound)" if name in table.bounds else name for name in lines.index])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_title(f"{table.title}, {setting.dataset}: points above {setting.reference}", fontsize="medium", loc="left")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize="small", labelbottom=True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def svg_text(figure: Figure) -> str:
    """Return the figure as SVG; equal figures give equal text.

    Coordinates are cut off at hundredths of a point, which is invisible and saves at least a quarter of the file.
    """
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "fssl-bench"}):  # makes ids deterministic
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text.getvalue())
