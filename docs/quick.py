"""Write the table of all suites at scale quick into docs/results.md, from what ``make bench-table1`` has written.

Run from the repository's root: ``python docs/quick.py [folder of the tables] [page]``.
"""

import sys
from pathlib import Path

import pandas as pd

from benchmark.report.formats import pipe_table
from benchmark.report.tables import replace_block

BOUNDS = {  # by suite: the rows with the labels alone and with all labels, where a suite has them
    "rscfed": ("fedavg_lower", "fedavg_upper"),
    "cbafed": ("fedavg_lower", "fedavg_upper"),
    "fl2": ("server_only", None),
    "feddb": ("FedAvg", None),
    "feddure": ("FedAvg*", "FedAvg-SL"),
    "proxyfl": ("FedAvg", "FedAvg-SL"),
}
HEAD = ["suite", "cells, seeds", "labels alone", "all labels", "lowest cell", "not resolved below"]


def line(paper: str, cells: pd.DataFrame) -> list[str]:
    """A suite's line: of all cells of its tables that were run, in percent and points."""
    cells = cells[(cells["metric"] == "acc") & (cells["n"] > 0)].drop_duplicates("runs")
    cells = cells[~cells["method"].isin(["improvement"])]  # a difference of two rows
    lowest = cells.loc[cells["ours"].idxmin()]
    seeds = sorted(set(cells["n"]))
    where = f"{lowest['method']} (table {lowest['table']}, as {lowest['dataset']})"
    return [
        f"`{paper}`",
        f"{len(cells)}, {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))}",
        *(reach(cells[cells["method"] == bound]["ours"]) for bound in BOUNDS[paper]),
        f"{where}: {lowest['ours']:.1f}",
        f"{cells['ci95'].median():.1f} points, in the worst cell {cells['ci95'].max():.1f}",
    ]


def reach(values: pd.Series) -> str:
    """Least and greatest of some accuracies; ``-`` for none."""
    return f"{values.min():.1f} to {values.max():.1f}" if len(values) else "-"


def main(tables: Path, page: Path) -> None:
    """Fill the block ``quick`` of the page with a line for every suite that has been run at scale quick."""
    files = {paper: tables / f"{paper}-quick.csv" for paper in BOUNDS}
    found = {paper: pd.read_csv(file, dtype={"table": str}) for paper, file in files.items() if file.exists()}
    if not found:
        sys.exit(f"{tables} has no table of scale quick: run `make bench-table1 PAPER=<suite>` for each suite first")
    body = pipe_table(HEAD, [line(paper, cells) for paper, cells in found.items()])
    text = page.read_text(encoding="utf-8")
    page.write_text(replace_block(text, "quick", body), encoding="utf-8")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(Path(given.get(0, "results/tables")), Path(given.get(1, "docs/results.md")))
