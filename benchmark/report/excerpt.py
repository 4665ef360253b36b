"""A few rows of a table for a page that people see first: one data set, one metric, the rows that have been run."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from benchmark.files import write_atomic
from benchmark.report.layout import Rendered, pipe_table
from benchmark.report.tables import replace_block


def excerpt(frame: pd.DataFrame, dataset: str) -> str:
    """Methods as rows: ours, published, difference, verdict and number of seeds of the first metric, in Markdown.

    Args:
        frame: one table in its long form, as in its CSV.
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
            f"{line['delta']:+.2f}" if pd.notna(line.get("delta")) else "",
            "" if pd.isna(line["status"]) else line["status"],
        ]
        for line in lines.to_dict("records")
    ]
    metric = lines["metric"].iloc[0] if len(lines) else "metric"
    head = ["method", f"{metric}, ours", "seeds", "published", "Δ", "status"]
    return pipe_table(head, body)


def update(page: Path, name: str, tables: Iterable[Rendered]) -> bool:
    """Fill the blocks ``excerpt:<name>-<table>/<data set>`` of a page; whether that changed it.

    Args:
        page: a Markdown file.
        name: ``<paper>-<scale>``.
        tables: all tables of that name.
    """
    before = text = page.read_text(encoding="utf-8")
    for table in tables:
        for dataset in table.frame["dataset"].unique():
            told = excerpt(table.frame, dataset)
            if table.of_paper and not table.compare:
                used = table.data_label(dataset)
                told = f"**Scale {table.scale}: not the paper's protocol.** Data: {used}.\n\n{told}"
            text = replace_block(text, f"excerpt:{name}-{table.number}/{dataset}", told)
    if text != before:
        write_atomic(page, text)
    return text != before
