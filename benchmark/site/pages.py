"""Content of each page: plain values for the templates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter

from benchmark.files import dump_yaml
from benchmark.report import leaderboard, others
from benchmark.report.curves import AXES, Curve, read_curve
from benchmark.report.formats import cell_text
from benchmark.report.layout import Layout, Line, Rendered, touched
from benchmark.report.settings import Setting, not_compared, told_apart
from benchmark.runs.environment import hardware
from benchmark.runs.records import AVERAGED, READINGS, Record
from benchmark.site.charts import Chart, Charts, partition, swatch
from benchmark.site.gather import Found, ScaledSuite

METRICS = {
    "acc": "Accuracy (%)",
    "acc_clients": "Accuracy that clients can expect (%), mean",
    "acc_worst_clients": "Accuracy that clients can expect (%), worst tenth",
    "auc": "AUC (%)",
    "precision": "Precision (%)",
    "recall": "Recall (%)",
}
PSEUDO = {
    "pseudo/accuracy": "Precision: share of the selected pseudo-labels that are right",
    "pseudo/selected": "Coverage: share of the images whose pseudo-label is selected",
    "pseudo/right": "Share of all pseudo-labels that are right, selected or not",
    "pseudo/balance": "Balance of the selected classes (1 is even)",
    "pseudo/certain": "Share of the images above the threshold",
}
COUNTS = {"n": "Int64", "failed": "Int64", "reached": "Int64"}  # columns of a leaderboard that count seeds
COMPARED = {
    "mean": "accuracy, %",
    "ci95": "± 95 %",
    "n": "seeds",
    "failed": "failed seeds",
    "last_k_mean": "mean of last rounds, %",
    "difference": "Δ",
    "difference_ci95": "± 95 % of Δ",
    "simultaneous_ci95": "± 95 %, simultaneous",
    "p": "p",
    "p_holm": "p (Holm)",
    "p_flip": "p (sign flips)",
    "rise": "rise, last quarter",
    "above": "share above",
    "rank": "rank",
    "tuned": "tuned",
}
BRIEF = ("mean", "ci95", "n", "failed", "difference", "difference_ci95", "simultaneous_ci95", "p_holm", "rank")
SPENT = {
    "reached": "seeds that reach it",
    "rounds": "rounds",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "steps": "steps",
    "seconds": "seconds",
    "client_state_bytes": "bytes of client state, at most",
}
VERDICTS = ("reproduced", "level only", "effect only", "not reproduced")

Page = dict[str, Any]


def home_page(views: Sequence[ScaledSuite], found: Mapping[str, Found], idle: Sequence[str] = ()) -> Page:
    """Leaderboards of all ranked suites, and the papers; ``idle`` are suites without any run."""
    charts = Charts()
    boards = [_board(view, charts) for view in views if view.suite.ranked]
    papers: dict[str, list[ScaledSuite]] = {}
    for view in views:
        papers.setdefault(view.suite.paper, []).append(view)
    page: Page = {"root": "", "boards": boards, "papers": papers, "verdicts": VERDICTS, "count": _verdicts}
    return {**page, "runs": found, "idle": idle}


def paper_page(views: Sequence[ScaledSuite], found: Mapping[str, Found]) -> Page:
    """A suite's tables at all its scales, each with its learning curves."""
    charts = Charts()
    parts = [{"view": view, "tables": [_table(view, one, charts) for one in view.tables]} for view in views]
    suite, tables = views[0].suite, [table for view in views for table in view.tables]
    return {"root": "../", "suite": suite, "parts": parts, "found": found, "others": others.sections(suite, tables)}


def runs_page(found: Mapping[str, Found], views: Sequence[ScaledSuite]) -> Page:
    """All runs, one line each, with their labels in tables."""
    labels: dict[str, dict[str, None]] = {key: {} for key in found}
    for line in (line for view in views for table in view.tables for line in table.lines):
        for key in set(line.runs) & set(found):
            labels[key][line.row.method] = None

    def place(item: tuple[str, Found]) -> tuple[str, str, str, list[str], int]:
        key, record = item[0], item[1].record
        return record["scale"], record["method"], record["dataset"], list(labels[key]), record["config"]["seed"]

    runs = [run for _, run in sorted(found.items(), key=place)]
    scales = sorted({run.record["scale"] for run in runs})
    protocol = {key for view in views if view.compare for key in view.plan.runs}
    return {"root": "", "runs": runs, "labels": labels, "scales": scales, "protocol": protocol}


def run_page(run: Found, views: Sequence[ScaledSuite]) -> Page:
    """One run: its place in tables, readings, curves, partition, cost, environment and configuration."""
    charts, record, curve = Charts(), run.record, run.curve
    places = _places(record["run_id"], views)
    seconds, rounds = record["timing"]["seconds"], max(1, record["rounds"]["done"])
    readings = {name: record[name] for name in (*READINGS, AVERAGED) if record.get(name)}
    return {
        "root": "../",
        "run": run,
        "record": record,
        "places": places,
        "protocol": any(view.compare for view, _, _ in places),
        "notes": list(dict.fromkeys(f"{view.suite.paper}, {view.scale}: {view.note}" for view, _, _ in places)),
        "readings": readings,
        "reading_columns": [key for key in METRICS if any(key in reading for reading in readings.values())],
        "curves": _charts(charts, curve, METRICS | {key: key for key in _columns(curve) if "loss" in key}),
        "pseudo": _charts(charts, curve, PSEUDO),
        "confusion": _confusion(charts, record),
        "partition": partition_chart(record),
        "cost": [
            ("time", "seconds", seconds),
            ("time per round", "seconds", seconds / rounds),
            ("sent up", "bytes", record["bytes_up"]),
            ("sent down", "bytes", record["bytes_down"]),
            ("sent per round", "bytes", (record["bytes_up"] + record["bytes_down"]) / rounds),
        ],
        "hardware": hardware(record["environment"]),
        "config": dump_yaml(record["config"]),
    }


def value_text(name: str, value: Any) -> str:
    """Format a value for readers: bytes and seconds by column name, small numbers with two digits."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if not isinstance(value, Real) or cell_text(value) == "":
        return cell_text(value)
    number = float(value)
    if "bytes" in name:
        return EngFormatter("B", places=2)(number)
    if "seconds" in name:
        return f"{number:.2f} s" if number < 60 else str(timedelta(seconds=round(number)))
    if number.is_integer() and "." not in cell_text(value):
        return str(int(number))
    return f"{number:.2g}" if 0 < abs(number) < 0.1 else f"{number:.2f}"


def partition_chart(record: Record) -> Chart | None:
    """Draw images per client and class from the record; ``None`` if it has none."""
    if counts := record.get("class_counts"):
        labelled, unlabelled, server = (tuple(counts[role]) for role in ("labelled", "unlabelled", "server"))
        names = tuple(str(number) for number in range(len(labelled)))
        if server:
            labelled, unlabelled = server + labelled, (_none(server[0]), *unlabelled)
            names = ("server", *names)
        return partition(names, labelled, unlabelled, "Images per client and class")
    if record["labelled_histogram"]:
        labelled = tuple(" ".join(map(str, row)) for row in record["labelled_histogram"])
        names = tuple(f"#{number + 1}" for number in range(len(labelled)))
        title = "Labelled images per class, of the clients that have any"
        return partition(names, labelled, tuple(map(_none, labelled)), title)
    return None


def _none(counts: str) -> str:
    """Return as many zeros as there are counts."""
    return " ".join("0" for _ in counts.split())


def _board(view: ScaledSuite, charts: Charts) -> Page:
    """Leaderboard of a ranked suite at a scale."""
    parts = []
    for one in view.settings:
        lines = one.lines.loc[list(one.order)]
        lines.index = pd.Index([_marked(str(method), line) for method, line in lines.iterrows()], name="method")
        whole = lines.assign(failed=lines["failed"].where(lines["failed"] > 0)).astype(COUNTS)  # no column of zeros
        title = f"{one.table.title}: {one.dataset}, points above {one.reference}"
        points = _points(one)
        parts.append(
            {
                "title": f"{one.table.title}: {one.dataset}",
                "reference": one.reference,
                "chart": charts.differences(points, title, "points") if points else None,
                "lines": _in_brief(one),
                "resolved": leaderboard.plain(leaderboard.resolved(one)),
                "compared": _columns_of(whole, COMPARED),
                "goal": _given(one.lines["goal"].iloc[0]),
                "spent": _columns_of(whole, SPENT),
            }
        )
    absent = {table: names for table in view.suite.tables if (names := not_compared(view.plan, table))}
    return {
        "view": view,
        "accuracy": leaderboard.ACCURACY[view.suite.report],
        "interim": [text.replace("**", "") for text in leaderboard.interim(view.suite, view.plan, view.settings)],
        "settings": parts,
        "not_compared": [(table, names) for table, names in absent.items()],
    }


def _marked(method: str, line: pd.Series) -> str:
    """Return a row's name with warnings that matter for comparisons."""
    marks = (["bound"] if line["bound"] else []) + ([] if line["converged"] else ["not converged"])
    return f"{method} ({', '.join(marks)})" if marks else method


def _points(one: Setting) -> list[tuple[str, float, float | None, str]]:
    """Return name, difference, half-width of the decisive interval, and state per row, in the page's order."""
    points = []
    for method, line in one.lines.loc[list(one.order)].iterrows():
        if method != one.reference and not pd.isna(line["difference"]):
            half = _given(line["simultaneous_ci95"]) or _given(line["difference_ci95"])
            state = "told apart" if told_apart(one, str(method)) else "not told apart"
            points.append((str(method), line["difference"], half, "bound" if line["bound"] else state))
    return points


def _in_brief(one: Setting) -> list[Page]:
    """Summarise every row, in the page's order; Δ is marked as on the board's page."""
    return [
        {
            "method": _marked(str(method), line),
            "apart": told_apart(one, str(method)),
            "reference": method == one.reference,
            **{name: _given(line[name]) for name in BRIEF},
        }
        for method, line in one.lines.loc[list(one.order)].iterrows()
    ]


def _confusion(charts: Charts, record: Record) -> Chart | None:
    """Draw the confusion matrix of the last round's model; ``None`` if the record has none."""
    if not (lines := record.get("confusion")):
        return None
    matrix = np.array([line.split() for line in lines], dtype=np.int64)
    return charts.confusion(matrix, "The last model on the test set: percent of each true class, and accuracy")


def _columns_of(lines: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Select columns with their titles, after the method, without empty ones."""
    return _filled(lines[list(titles)].rename(columns=dict(titles)).reset_index())


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the columns with any content: a number, a text, or a true."""
    return frame[[name for name in frame if any(value_text(str(name), value) for value in frame[name])]]


def _given(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _verdicts(view: ScaledSuite) -> Counter[str]:
    """Count cells by verdict; a cell in several tables counts once."""
    cells = {(line.runs, line.metric): line for table in view.tables for line in table.lines if line.delta is not None}
    lines = cells.values()
    return Counter(verdict for line in lines for verdict in VERDICTS if line.verdict.partition(",")[0] == verdict)


def _table(view: ScaledSuite, table: Rendered, charts: Charts) -> Page:
    layout = table.layout
    kept = layout.touched_data()
    columns = [(dataset, metric, dataset not in kept) for dataset, metric in layout.columns]
    spans = Counter(dataset for dataset, _ in layout.columns)
    return {
        "table": table,
        "layout": layout,
        "columns": columns,
        "datasets": [(dataset, spans[dataset], dataset not in kept) for dataset in spans],
        "rows": [(keys, _keys_text(layout, keys), cells, not touched(cells)) for keys, cells in layout.rows],
        "run": bool(kept),
        "figures": [_figure(view, table, dataset, charts) for dataset in spans if dataset in kept],
    }


def _keys_text(layout: Layout, keys: Sequence[str]) -> str:
    """Describe a row by the columns that it has besides its method, each with its name."""
    return ", ".join(f"{head} {key}" for head, key in zip(layout.heads[1:], keys[1:], strict=True) if key)


def _figure(view: ScaledSuite, table: Rendered, dataset: str, charts: Charts) -> Page:
    """Draw the accuracy of a data set's rows over rounds, bytes and seconds."""
    layout, curves = table.layout, {}
    for label, (_, cells) in zip(layout.labels(), layout.rows, strict=True):
        line = next((one for one in cells if one is not None and one.row.dataset == dataset), None)
        complete = [key for key in line.runs if view.plan.found[key].record is not None] if line else []
        if line and complete and line.row.minus is None:
            curves[label] = read_curve([view.plan.runs[key].folder for key in complete], ["acc"])
    drawn = [charts.curves(curves, "acc", axis, f"Accuracy (%), {table.data_label(dataset)}") for axis in AXES]
    legend = [(swatch(number), label, curve.seeds) for number, (label, curve) in enumerate(curves.items())]
    return {"dataset": dataset, "charts": [chart for chart in drawn if chart], "legend": legend}


def _places(run: str, views: Sequence[ScaledSuite]) -> list[tuple[ScaledSuite, Rendered, Line]]:
    """Return the cells that use a run, one per row."""
    return [
        (view, table, line)
        for view in views
        if run in view.plan.runs
        for table in view.tables
        for line in table.lines
        if run in line.runs and line.metric == table.lines[0].metric
    ]


def _columns(curve: Curve) -> list[str]:
    """Return the columns with a number per row."""
    return sorted({key for row in curve.rows for key, value in row.items() if isinstance(value, float)})


def _charts(charts: Charts, curve: Curve, titles: Mapping[str, str]) -> list[Chart]:
    """Draw a chart per column that the rows have."""
    drawn = [charts.curves({"this run": curve}, column, "round", title) for column, title in titles.items()]
    return [chart for chart in drawn if chart]
