"""Values reported by other papers for a suite's methods, next to its own paper's values and ours."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from benchmark.report.layout import ExtraTable, Rendered, same_name
from benchmark.suites.plan import Row
from benchmark.suites.published import read_others
from benchmark.suites.suite import OTHERS, Suite, available, load

NOTE = (
    "Each paper has its own protocol, and often its own version of the method: values of different settings are not to "
    "be compared. Mean ± standard deviation over the runs, as printed; ours ± half-width of the 95 % t interval."
)
COLUMNS = ("reported by", "data set", "setting", "accuracy", "runs")
WHO = {"partial_clients": "some clients", "all_clients": "all clients", "server": "the server"}

Line = dict[str, Any]


def sections(suite: Suite, tables: Sequence[Rendered]) -> list[ExtraTable]:
    """Build a table for each method that the suite lists under ``reported``.

    Args:
        suite: suite with the methods' labels.
        tables: the suite's tables at one or several scales.
    """
    own = {suite.paper, suite.extended.paper if suite.extended else ""}
    others = [load(paper) for paper in available() if paper not in own] if suite.reported else []
    return [_section(suite, others, label, tables) for label in suite.reported]


def _section(suite: Suite, others: Sequence[Suite], label: str, tables: Sequence[Rendered]) -> ExtraTable:
    elsewhere = [line for other in others for line in _printed(other, label)] + _in_papers_without_suite(label)
    nothing = "" if elsewhere else " No value from another paper is known to us."
    frame = pd.DataFrame([*_here(suite, label, tables), *elsewhere], columns=COLUMNS)
    return ExtraTable(f"What other groups report for {label}", NOTE + nothing, frame)


def ranges(paper: str) -> pd.DataFrame:
    """What papers print for the methods that a suite names under ``reported``, in short.

    A line per method, paper and data set: how many values there are, and the lowest and the highest.

    Args:
        paper: key of the suite.
    """
    suite = load(paper)
    suites = [suite, *(load(other) for other in available() if other != paper)]
    lines = []
    for label in suite.reported:
        for one in suites:
            for line in _printed(one, label):
                entry = one.spec["datasets"][line["data set"]]["set"]
                lines.append([label, line["reported by"], entry["data"], line["accuracy"]])
        for line in _in_papers_without_suite(label):
            lines.append([label, line["reported by"], line["data set"].lower(), line["accuracy"]])
    frame = pd.DataFrame(lines, columns=["method", "reported by", "data set", "accuracy"])
    frame["reported by"] = frame["reported by"].str.partition(", table")[0]
    frame["accuracy"] = frame["accuracy"].str.partition(" ")[0].astype(float)
    found = frame.groupby(["method", "reported by", "data set"], sort=False)["accuracy"].agg(["size", "min", "max"])
    return found.set_axis(["values", "lowest", "highest"], axis=1)


def _here(suite: Suite, label: str, tables: Sequence[Rendered]) -> Iterator[Line]:
    """The values of the suite's paper and of our runs at each scale; runs of several tables share a line."""
    yield from _printed(suite, label)
    shown = set()
    for table in tables:
        for line in table.cells:
            if line.row.method == label and line.metric == "acc" and line.n and line.runs not in shown:
                shown.add(line.runs)
                yield {
                    "reported by": f"ours, scale {table.scale}, table {table.number}",
                    "data set": table.data_label(line.row.dataset),
                    "setting": _setting(suite, line.row, table.scale),
                    "accuracy": line.ours_text,
                    "runs": str(line.n),
                }


def _printed(suite: Suite, label: str) -> Iterator[Line]:
    """The suite's paper's values for a method, whatever its spelling there."""
    protocol = next((name for name in suite.spec["scales"] if suite.compares(name)), "")
    published = suite.published() if protocol else {}
    for row in suite.rows:
        value, spread = published.get(row.key("acc")), published.get(row.key("acc std"))
        if value is not None and same_name(row.method, label):
            runs = next(table.published_runs for table in suite.tables if table.number == row.table)
            yield {
                "reported by": f"{suite.title.partition(':')[0]}, table {row.table}",
                "data set": row.dataset,
                "setting": _setting(suite, row, protocol),
                "accuracy": f"{value} ± {spread}" if spread else value,
                "runs": str(runs),
            }


def _in_papers_without_suite(label: str) -> list[Line]:
    """Other papers' values for a method."""
    lines = []
    for one in read_others(OTHERS):
        if same_name(one["method"], label):
            value = f"{one['value']} ± {one['std']}" if one["std"] else one["value"]
            told = (one["source"], one["dataset"], one["setting"], value, one["seeds"])
            lines.append(dict(zip(COLUMNS, told, strict=True)))
    return lines


def _setting(suite: Suite, row: Row, scale: str) -> str:
    """Describe a row by its distinguishing columns in its table, and the protocol in brief."""
    told = [f"{name.replace('_', ' ')} {value}" for name, value in row.columns.items()]
    if not row.pending:
        config = suite.run(row, scale).config
        data, drawn = config.data.init_args, config.roster.get("participants")
        told.append(f"labels at {WHO[data['scenario']]}")
        told += [f"{data['num_labels']} labels"] if data["num_labels"] else []
        told.append(f"{data['num_clients']} clients" + (f" ({drawn} a round)" if drawn else ""))
        told += [config.model, f"{config.rounds} rounds"]
    return ", ".join(told)
