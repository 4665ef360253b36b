"""What each page shows: plain values for the templates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmark.files import dump_yaml
from benchmark.launch.environment import hardware
from benchmark.report import leaderboard
from benchmark.report.curves import AXES, Curve, read_curve
from benchmark.report.layout import Line, Rendered, touched
from benchmark.report.records import READINGS, Record
from benchmark.site.charts import Chart, Charts, swatch
from benchmark.site.gather import Found, View

METRICS = {"acc": "Accuracy (%)", "auc": "AUC (%)", "precision": "Precision (%)", "recall": "Recall (%)"}
PSEUDO = {
    "pseudo/accuracy": "Precision: share of the selected pseudo-labels that are right",
    "pseudo/selected": "Coverage: share of the images whose pseudo-label is selected",
    "pseudo/right": "Share of all pseudo-labels that are right, selected or not",
    "pseudo/balance": "Balance of the selected classes (1 is even)",
    "pseudo/certain": "Share of the images above the threshold",
}
VERDICTS = ("reproduced", "close", "not reproduced")

Page = dict[str, Any]


def home_page(views: Sequence[View], found: Mapping[str, Found]) -> Page:
    """The leaderboard of every ranked suite, and the papers."""
    charts = Charts()
    boards = [_board(view, charts) for view in views if view.suite.ranked]
    papers: dict[str, list[View]] = {}
    for view in views:
        papers.setdefault(view.suite.paper, []).append(view)
    return {"root": "", "boards": boards, "papers": papers, "verdicts": VERDICTS, "count": _verdicts, "runs": found}


def paper_page(views: Sequence[View], found: Mapping[str, Found]) -> Page:
    """A suite's tables at all its scales, each with its learning curves."""
    charts = Charts()
    parts = [{"view": view, "tables": [_table(view, one, found, charts) for one in view.tables]} for view in views]
    return {"root": "../", "suite": views[0].suite, "parts": parts, "found": found}


def runs_page(found: Mapping[str, Found]) -> Page:
    """All runs, one line each."""
    runs = sorted(found.values(), key=lambda run: (run.record["scale"], run.record["method"], run.record["dataset"]))
    return {"root": "", "runs": runs, "scales": sorted({run.record["scale"] for run in runs})}


def run_page(run: Found, views: Sequence[View]) -> Page:
    """One run: where it stands, its readings, curves, partition, cost, environment and configuration."""
    charts, record, curve = Charts(), run.record, run.curve
    places = _places(record["run_id"], views)
    seconds, rounds = record["timing"]["seconds"], max(1, record["rounds"]["done"])
    readings = {name: record[name] for name in READINGS if record[name]}
    return {
        "root": "../",
        "run": run,
        "record": record,
        "places": places,
        "protocol": any(view.compare for view, _, _ in places),
        "notes": list(dict.fromkeys(f"{view.suite.paper}, {view.scale}: {view.note}" for view, _, _ in places)),
        "readings": readings,
        "reading_columns": [key for key in METRICS if any(key in reading for reading in readings.values())],
        "metrics": _charts(charts, curve, METRICS),
        "losses": _charts(charts, curve, {key: key for key in _columns(curve) if "loss" in key}),
        "pseudo": _charts(charts, curve, PSEUDO),
        "partition": partition_chart(record, charts),
        "cost": {
            "training": {"seconds": seconds, "seconds per round": seconds / rounds},
            "sent": {
                "bytes_up": record["bytes_up"],
                "bytes_down": record["bytes_down"],
                "bytes per round, up and down": (record["bytes_up"] + record["bytes_down"]) / rounds,
            },
        },
        "hardware": hardware(record["environment"]),
        "config": dump_yaml(record["config"]),
    }


def partition_chart(record: Record, charts: Charts) -> Chart | None:
    """Heat map of images per client and class, as far as the record holds them; ``None`` where it holds none."""
    counts = record.get("class_counts")
    if counts:
        rows = {role: np.array([row.split() for row in counts[role]], dtype=np.int64) for role in counts}
        labelled, unlabelled = rows["labelled"], rows["unlabelled"]
        names = [str(number) for number in range(len(labelled))]
        if len(rows["server"]):
            labelled, names = np.vstack([rows["server"], labelled]), ["server", *names]
            unlabelled = np.vstack([rows["server"] * 0, unlabelled])
        return charts.partition(names, labelled, unlabelled, "Images per client and class")
    if record.get("labelled_histogram"):
        labelled = np.array(record["labelled_histogram"], dtype=np.int64)
        names = [f"#{number + 1}" for number in range(len(labelled))]
        return charts.partition(
            names, labelled, labelled * 0, "Labelled images per class, of the clients that have any"
        )
    return None


def _board(view: View, charts: Charts) -> Page:
    """The leaderboard of a ranked suite at a scale."""
    settings = leaderboard.settings(view.suite, view.plan, view.runs)
    parts = []
    for one in settings:
        lines = one.lines.sort_values("mean", ascending=False)
        shown = [(str(m), line["mean"], _given(line["ci95"])) for m, line in lines.iterrows() if line["n"]]
        parts.append(
            {
                "title": f"{one.table.title}: {one.dataset}",
                "reference": one.reference,
                "chart": charts.intervals(shown, f"{one.table.title}, {one.dataset}"),
                "frame": _filled(lines.rename_axis("method").reset_index()),
            }
        )
    rankings = {one.table.title: leaderboard.ranking(settings, one.table) for one in settings}
    return {"view": view, "settings": parts, "rankings": {title: found for title, found in rankings.items() if found}}


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns in which something stands."""
    return frame[[name for name in frame if frame[name].notna().any() and (frame[name].astype(str) != "").any()]]


def _given(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _verdicts(view: View) -> Counter[str]:
    """How many cells have which verdict."""
    lines = [line for table in view.tables for line in table.lines if line.delta is not None]
    return Counter(verdict for line in lines for verdict in VERDICTS if line.verdict.partition(",")[0] == verdict)


def _table(view: View, table: Rendered, found: Mapping[str, Found], charts: Charts) -> Page:
    layout = table.layout
    kept = layout.touched_data()
    columns = [(dataset, metric, dataset not in kept) for dataset, metric in layout.columns]
    spans = Counter(dataset for dataset, _ in layout.columns)
    return {
        "table": table,
        "layout": layout,
        "columns": columns,
        "datasets": [(dataset, spans[dataset], dataset not in kept) for dataset in spans],
        "rows": [(keys, cells, not touched(cells)) for keys, cells in layout.rows],
        "run": bool(kept),
        "figures": [_figure(view, table, dataset, found, charts) for dataset in spans if dataset in kept],
    }


def _figure(view: View, table: Rendered, dataset: str, found: Mapping[str, Found], charts: Charts) -> Page:
    """Accuracy of a data set's rows over rounds, bytes and seconds."""
    layout, curves = table.layout, {}
    for label, (_, cells) in zip(layout.labels(), layout.rows, strict=True):
        line = next((one for one in cells if one is not None and one.row.dataset == dataset), None)
        complete = [key for key in line.runs if view.runs[key].record is not None] if line else []
        if line and complete and line.row.minus is None:
            curves[label] = read_curve([found[key].path for key in complete])
    drawn = [charts.curves(curves, "acc", axis, f"Accuracy (%), {dataset}") for axis in AXES]
    legend = [(swatch(number), label, curve.seeds) for number, (label, curve) in enumerate(curves.items())]
    return {"dataset": dataset, "charts": [chart for chart in drawn if chart], "legend": legend}


def _places(run: str, views: Sequence[View]) -> list[tuple[View, Rendered, Line]]:
    """The cells that rest on a run, one per row."""
    return [
        (view, table, line)
        for view in views
        if run in view.runs
        for table in view.tables
        for line in table.lines
        if run in line.runs and line.metric == table.lines[0].metric
    ]


def _columns(curve: Curve) -> list[str]:
    """Columns with a number per row."""
    return sorted({key for row in curve.rows for key, value in row.items() if isinstance(value, float)})


def _charts(charts: Charts, curve: Curve, titles: Mapping[str, str]) -> list[Chart]:
    """A chart per column that the rows have."""
    drawn = [charts.curves({"this run": curve}, column, "round", title) for column, title in titles.items()]
    return [chart for chart in drawn if chart]
