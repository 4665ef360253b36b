"""Excerpts of tables for the README: one data set, one metric, the rows that have been run."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmark.files import write_changed
from benchmark.report.curves import read_curve
from benchmark.report.formats import markdown, pipe_table
from benchmark.report.layout import Rendered
from benchmark.report.plots import draw_learning_curves, row_labels, svg_text
from benchmark.report.tables import replace_block
from benchmark.suites.plan import Plan


def excerpt(frame: pd.DataFrame, dataset: str) -> str:
    """Format methods as rows in Markdown: our value of the first metric, published, difference, effect, verdict.

    Args:
        frame: one table in long form, as in its CSV.
        dataset: label of the data set.
    """
    lines = frame[(frame["dataset"] == dataset) & (frame["n"] > 0)]
    lines = lines[lines["metric"] == lines["metric"].iloc[0]] if len(lines) else lines
    body = [
        [
            line["method"],
            f"{line['ours']:.2f}" + (f" ± {line['ci95']:.2f}" if pd.notna(line["ci95"]) else ""),
            str(line["n"]),
            "" if pd.isna(line.get("published")) else line["published"],
            _signed(line.get("delta"), line.get("prediction")),
            _signed(line.get("effect"), line.get("effect_ci95")),
            _signed(line.get("effect_published")),
            "" if pd.isna(line["status"]) else line["status"],
        ]
        for line in lines.to_dict("records")
    ]
    metric = lines["metric"].iloc[0] if len(lines) else "metric"
    head = ["method", f"{metric}, ours", "seeds", "published", "Δ", "effect, ours", "published effect", "status"]
    return pipe_table(head, body)


def _signed(value: float | None, half: float | None = None) -> str:
    """Format a difference with its sign and, if known, the half-width of its interval."""
    told = f"{value:+.2f}" if pd.notna(value) else ""
    return f"{told} ± {half:.2f}" if told and pd.notna(half) else told


def update(page: Path, name: str, tables: Iterable[Rendered], plan: Plan, results: Path) -> list[Path]:
    """Fill the blocks ``excerpt:<name>-<table>/<data set>`` of a page, and draw the learning curves of their rows.

    The figure of a block is ``tables/<name>-<table>-<data set>.svg``, with the ids of its runs as description. Returns
    the changed files.

    Args:
        page: a Markdown file.
        name: ``<paper>-<scale>``.
        tables: all tables of that name.
        plan: runs of the tables.
        results: folder of the tables.
    """
    text, figures = page.read_text(encoding="utf-8"), {}
    for table in tables:
        for dataset in table.frame["dataset"].unique():
            block = f"excerpt:{name}-{table.number}/{dataset}"
            if f"<!-- {block}:begin -->" not in text:
                continue
            told = excerpt(table.frame, dataset)
            if table.of_paper and not table.compare:
                used = table.data_label(dataset)
                told = markdown(f"**Scale {table.scale}: not the paper's protocol.** Data: {used}.") + f"\n\n{told}"
            text = replace_block(text, block, told)
            if drawn := learning_curves(table, dataset, plan):
                figures[results / "tables" / f"{name}-{table.number}-{dataset}.svg"] = svg_text(
                    drawn[0], " ".join(drawn[1])
                )
    return write_changed({page: text, **figures})


def learning_curves(table: Rendered, dataset: str, plan: Plan) -> tuple[Figure, list[str]] | None:
    """Draw learning curves of a table's rows on a data set, averaged over complete seeds; also return the run ids.

    ``None`` before the first run is complete.
    """
    lines = [line for line in table.cells if line.row.dataset == dataset and line.n and not line.row.minus]
    lines = [line for line in lines if line.metric == lines[0].metric]
    complete = [[key for key in line.runs if plan.found[key].state == "complete"] for line in lines]
    curves = {
        label: read_curve(plan.runs[key].folder for key in keys)
        for label, keys in zip(row_labels([line.row for line in lines]), complete, strict=True)
    }
    if not curves:
        return None
    return draw_learning_curves(curves, [lines[0].metric]), [key for keys in complete for key in keys]
