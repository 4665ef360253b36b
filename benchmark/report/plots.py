"""Learning curves of runs, and of a suite's rows averaged over seeds."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmark.config import Runtime
from benchmark.report.frame import rounds_of
from benchmark.runs.records import read_record
from benchmark.runs.states import state_of
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

AXES = ("round", "bytes", "seconds")
FORMATS = (".png", ".svg", ".pdf", ".jpg")
STYLES = ("-", "--", ":", "-.")
FEW = 12  # up to this many rounds are marked individually


def read_runs(folders: Sequence[str], labels: Sequence[str] = ()) -> dict[str, pd.DataFrame]:
    """Read curves of single runs by label.

    Args:
        folders: folders of the runs, e.g. ``results/runs/<run>``.
        labels: a name per run; default: the methods, or the folders' names where two runs have the same method.

    Raises:
        ConfigError: no run in a folder, labels and runs differ in number, or the same label for two runs.
        RunError: a record is damaged.
    """
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not (path / "record.json").is_file():
            raise ConfigError(f"plot: there is no run at {path}; name folders that hold a record.json")
    methods = [str(read_record(path)["method"]) for path in paths]
    own = methods if len({*methods}) == len(methods) else [path.resolve().name for path in paths]
    return _named(labels or own, [read_curve([path]) for path in paths])


def read_suite_rows(
    suite: Suite, names: Sequence[str], scale: str, results_dir: str, labels: Sequence[str] = ()
) -> dict[str, pd.DataFrame]:
    """Read curves of a suite's rows by label, in the order of the suite.

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
    chosen = {row.full_name for rows in found for row in rows}
    runs = {
        row.full_name: _complete_runs(suite, row, scale, results_dir) for row in suite.rows if row.full_name in chosen
    }
    rows = [row for row in suite.rows if runs.get(row.full_name)]
    empty = [
        row.full_name for row in suite.rows if runs.get(row.full_name) == [] and {row.full_name, row.name} & {*names}
    ]
    if empty or not rows:
        raise ConfigError(
            f"plot: no complete run of {', '.join(empty or names)} at scale {scale} in {results_dir}; "
            f"`table --paper {suite.argument} --scale {scale}` creates them"
        )
    return _named(labels or row_labels(rows), [read_curve(runs[row.full_name]) for row in rows])


def _complete_runs(suite: Suite, row: Row, scale: str, results_dir: str) -> list[Path]:
    runs = suite.runs(row, scale, runtime=Runtime(results_dir=results_dir))
    return [run.folder for run in runs.values() if state_of(run).state == "complete"]


def row_labels(rows: Sequence[Row]) -> list[str]:
    """Name rows by method, plus the table, data set or columns in which rows of the same method differ."""
    facts = pd.DataFrame(
        [{"method": row.method, "table": row.table, "data": row.dataset, **row.columns} for row in rows]
    )
    labels = []
    for _, fact in facts.iterrows():
        peers = facts[facts["method"] == fact["method"]]
        told = [f"{name}={fact[name]}" for name in fact.dropna().index if peers[name].nunique(dropna=False) > 1]
        labels.append(f"{fact['method']} ({', '.join(told)})" if told else fact["method"])
    return labels


def read_curve(folders: Iterable[Path]) -> pd.DataFrame:
    """The rounds of runs that differ only in the seed, one under the other (``frame.rounds_of``).

    Raises:
        RunError: a row is damaged.
    """
    return pd.concat([rounds_of(folder).assign(run=str(folder)) for folder in folders], ignore_index=True)


def _named(names: Sequence[str], curves: Sequence[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    if len(names) != len(curves):
        raise ConfigError(f"--labels: {len(names)} for {len(curves)} curves; give one per curve, separated by commas")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"plot: two curves are called {name!r}; give them different names with --labels")
    return dict(zip(names, curves, strict=True))


def learning_curves(
    runs: Mapping[str, pd.DataFrame], columns: Sequence[str], path: str | Path, axis: str = "round"
) -> Path:
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
    figure = draw_learning_curves(runs, columns, axis)
    if path.suffix.lower() == ".svg":
        path.write_text(svg_text(figure), encoding="utf-8")
    else:
        figure.savefig(path)
    return path


@rc_context({"text.parse_math": False})  # names may have dollar signs
def draw_learning_curves(runs: Mapping[str, pd.DataFrame], columns: Sequence[str], axis: str = "round") -> Figure:
    """Draw columns of the records against the 0-based round or its cost: a panel per column, a line per curve.

    A curve of several seeds is their mean over the rounds that all of them have, with a band of one standard deviation.
    Rows without a column, or without the axis, leave a gap.

    Args:
        runs: curves by label.
        columns: what to draw, e.g. ``acc`` or ``pseudo/selected``; columns with a list per row cannot be drawn.
        axis: ``round``, ``bytes`` (up and down) or ``seconds``, both since the first round.

    Raises:
        ConfigError: no curve has numbers in a column (lists those that have), or there is nothing to draw.
    """
    numbers = {name: frame.select_dtypes("number") for name, frame in runs.items()}
    known = sorted({name for frame in numbers.values() for name in frame} - {"round"})
    for column in columns:
        if column not in known:
            raise ConfigError(
                f"plot: no run has a column {column!r} of numbers; there are {', '.join(known) or 'none'}"
            )
    if not columns:
        raise ConfigError("plot: no column to draw; name one or more, e.g. acc")
    if axis != "round" and axis not in known:
        raise ConfigError(f"--axis {axis}: choose one of {', '.join(AXES)} that the rows of the runs have")
    beside = max(1, 100 // (max(map(len, runs)) + 8))
    below = 0.2 * -(-len(runs) // beside)
    figure = Figure(figsize=(7.5, 2.7 * len(columns) + 0.4 + below), dpi=150, layout="constrained")
    panels = figure.subplots(len(columns), squeeze=False, sharex=True)[:, 0]
    handles = {}
    for panel, column in zip(panels, columns, strict=True):
        for place, (name, frame) in enumerate(numbers.items()):
            if column in frame and axis in frame:
                x, mean, spread = _of_rounds(runs[name], axis, column)
                marked = {"marker": "o", "markersize": 3.5} if len(mean) <= FEW else {}
                style = STYLES[place // 10 % len(STYLES)]
                (line,) = panel.plot(x, mean, color=f"C{place % 10}", linestyle=style, label=name, **marked)
                if spread.notna().any():
                    panel.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.18, linewidth=0)
                handles[name] = line
        panel.set_ylabel(f"{column} (%)" if column.startswith(("acc", "auc", "precision", "recall")) else column)
        panel.grid(alpha=0.3)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panels[-1].set_xlabel(axis)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=beside, fontsize="small", frameon=False)
    return figure


def _of_rounds(curve: pd.DataFrame, axis: str, column: str) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Axis, mean and standard deviation of a column over the rounds that all seeds have; NaN where one has no value."""
    of_round, seeds = curve.groupby("round"), curve["run"].nunique()
    shared = of_round["run"].nunique() == seeds
    x, mean, spread = curve[axis].groupby(curve["round"]).mean(), of_round[column].mean(), of_round[column].std()
    known = of_round[column].count() == seeds
    return x[shared], mean.where(known)[shared], spread.where(known)[shared]


def svg_text(figure: Figure) -> str:
    """Return the figure as SVG; equal figures give equal text.

    Lines are rounded to hundredths of a point, which is invisible and saves at least a quarter of the file.
    """
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "fssl-bench"}):  # makes ids deterministic
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text.getvalue())


def writable(path: str | Path, option: str, formats: Sequence[str] = FORMATS) -> Path:
    """Return ``path`` if a file can be written there.

    Args:
        path: file to write, which may exist.
        option: option that gave the path, for the message.
        formats: allowed suffixes; empty: any.

    Raises:
        ConfigError: the suffix is not allowed, or there is no such folder.
    """
    file = Path(path)
    if formats and file.suffix.lower() not in formats:
        raise ConfigError(f"{option} {path}: the suffix gives the format; use one of {', '.join(formats)}")
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(f"{option} {path}: name a file in a folder that exists")
    return file
