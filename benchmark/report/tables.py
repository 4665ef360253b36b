"""The papers' tables, computed from records: in the published layout, methods as rows and data sets as columns."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import pandas as pd
from tabulate import tabulate

from benchmark.report.facts import averaged_rounds, facts, last_rounds, network
from benchmark.report.formats import Marked, csv_text, half, latex_table, markdown, number, pipe_table
from benchmark.report.frame import BROKEN, LACKS, values_of
from benchmark.report.statistics import difference, interval, lead, paired, places, prediction
from benchmark.runs.console import printable
from benchmark.runs.records import READING
from benchmark.suites.plan import Plan, Row, Table, control_of
from benchmark.suites.suite import Suite
from datamodules.common.files import write_changed

VERDICT = ("prediction", "effect", "effect_ci95", "effect_prediction", "effect_n", "effect_published")
NUMBERS = ("ours", "std", "ci95", "delta", *VERDICT, *READING)
COLUMNS = (
    *("table", "dataset", "data", "network", "method", "columns", "metric", "ours", "std", "ci95", "n"),
    *("published", "spread", "delta", *VERDICT, "status", "note", *READING, "runs"),
)
"""Columns of the CSV; in ``columns`` stands what distinguishes rows of one label."""
WIDTH = 100  # characters per line in a terminal
OURS = "Ours: mean ± half-width of the 95 % t interval (number of seeds), in percent."
RANKED = (
    "The best row on the first data set stands first, rows with failed runs last. "
    "Whether two rows differ is on the leaderboard's page."
)
LEVEL = (
    "Below it the published value and, in brackets, Δ: ours, rounded as printed, minus published, with the half-width "
    "of our 95 % prediction interval for {further}; it decides nothing."
)
EFFECT = "Effect: the row minus {control}, paired by seed, ± half-width of its 95 % t interval."
JUDGED = (
    "Behind it in brackets the printed lead. Holds: the interval is on the printed side of 0, and the printed lead is "
    "not above our prediction interval; smaller: it is above; not seen: the interval contains 0 and excludes the "
    "printed lead; reversed: it is on the other side of 0; open: anything else."
)
NO_LEAD = "The table has no control, so that no lead is printed and there are no verdicts."
ALWAYS = ("data", "network", "rounds")  # facts that are told even if they are empty
NOTHING = "Nothing of this table has been run."

Cell = Mapping[str, Any]
"""One metric of one row of a suite: what ``COLUMNS`` show, and what it was made of.

``row`` (``Row``), ``scores`` (values by seed in the suite's reading, in percent), ``states`` (by seed), ``lacks`` (why
seeds have no value), ``verdict`` and ``effect_places`` (decimals of the printed lead).
"""


def write(suite: Suite, variant: str, pages: Sequence["Page"], results: Path) -> list[Path]:
    """Write ``tables/<paper>-<variant>`` as ``.md``, ``.csv`` and ``.tex``; returns the changed files."""
    file = results / "tables" / f"{suite.paper}-{variant}"
    texts = {
        ".md": "\n".join([markdown(f"# {suite.title}") + "\n", *(page.markdown for page in pages)]),
        ".csv": csv_text(pd.concat([page.frame for page in pages])),
        ".tex": "\n".join([r"% Made from records; needs \usepackage{booktabs}.", *(page.latex for page in pages), ""]),
    }
    return write_changed({file.with_name(file.name + suffix): text for suffix, text in texts.items()})


class Page:
    """One table of a suite at one scale.

    Args:
        suite: the suite.
        plan: its runs at one scale.
        published: printed values by ``Row.key``.
        table: one of its tables.

    Attributes:
        number: number of the table.
        compare: whether the runs follow the paper's protocol, so that values are compared with the published ones.
            Others are for orientation only.
        cells: one per row and metric.
        columns: columns that identify rows of the same method.
        heads: those of them in which rows differ.
        rows: the cells by data set and metric, by the method and the values of ``heads``.
        shown: those of the rows of which something was run.
        places: data sets and metrics that were run, in the order of the table: the columns of the layout.
        facts: facts about the runs by name; a text without a name has the empty one.
    """

    def __init__(self, suite: Suite, plan: Plan, published: Mapping[Any, str], table: Table) -> None:
        self.suite, self.plan, self.published, self.table = suite, plan, published, table
        self.number, self.compare = table.number, suite.scale(plan.scale).compare and not plan.rounds
        self._at_scale = [row for row in table.rows if row.method not in suite.scale(plan.scale).without]
        self.columns = list(dict.fromkeys(name for row in self._at_scale for name in row.columns))
        of_table = [row.key(metric) for row in self._at_scale for metric in table.metrics]
        self._printed = any(published.get(key) for key in of_table)  # whether we know values of the paper
        blocks = [[self._judged(row, metric) for metric in table.metrics] for row in self._at_scale]
        if suite.ranked:
            order = list(dict.fromkeys(row.dataset for row in table.rows))
            blocks.sort(key=lambda block: (order.index(block[0]["dataset"]), *_rank(block[0])))
        self.cells: list[Cell] = [cell for block in blocks for cell in block]
        values = {name: {row.columns.get(name, "") for row in self._at_scale} for name in self.columns}
        self.heads = [name for name in self.columns if len(values[name]) > 1]
        self.rows: dict[tuple[str, ...], dict[tuple[str, str], Cell]] = {}
        for cell in self.cells:
            keys = (cell["method"], *(cell["row"].columns.get(name, "") for name in self.heads))
            self.rows.setdefault(keys, {})[cell["dataset"], cell["metric"]] = cell
        methods = [keys[0] for keys in self.rows]
        self._labels = {key: key[0] if methods.count(key[0]) == 1 else " ".join(filter(None, key)) for key in self.rows}
        self.shown = [keys for keys, cells in self.rows.items() if any(map(_touched, cells.values()))]
        run = {cell["dataset"] for cell in self.cells if _touched(cell)}
        places = [(cell["dataset"], cell["metric"]) for cell in self.cells if cell["dataset"] in run]
        self.places = list(dict.fromkeys(places))
        constant = {name: value for name in self.columns if name not in self.heads for value in values[name]}
        self.facts = facts(suite, plan, table, self.cells, constant)

    @property
    def frame(self) -> pd.DataFrame:
        """The cells in the long form of the CSV: a line for each row and metric.

        ``status`` says what is missing (``1 of 3; failed (1)``), whether a value is published and, by the paper's
        protocol, the verdict on the printed lead. ``note`` says why it is open: too few seeds, none in common with
        the control, too wide an interval, failed, damaged or outdated runs of the row or of its control, or seeds
        other than the suite's.
        """
        return pd.DataFrame(self.cells, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, "float64"))

    def _cell(self, row: Row, metric: str) -> dict[str, Any]:
        """A cell without a verdict."""
        runs = self.plan.of_row[row.full_name]
        states = {seed: self.plan.found[key].state for seed, key in runs.items()}
        config = self.plan.run(row, self.plan.seeds[0]).config
        scores = values_of(self.plan, row.full_name, self.suite.reading(self.plan.scale), metric)
        readings = [name for name in READING if metric == "acc" and (name != "averaged" or config.average_last)]
        return {
            "table": self.number,
            "dataset": row.dataset,
            "data": config.data.name,
            "network": network(config),
            "method": row.method,
            "columns": ", ".join(f"{name}={row.columns[name]}" for name in self.columns if name in row.columns),
            "metric": metric,
            "ours": _mean(scores),
            "std": scores.std(),
            "ci95": interval(scores),
            "n": len(scores),
            "published": self.published.get(row.key(metric)),
            "spread": self.published.get(row.key(f"{metric} std")),
            **{name: _mean(values_of(self.plan, row.full_name, name, metric)) for name in readings},
            "runs": " ".join(runs.values()),
            "row": row,
            "scores": scores,
            "states": states,
            "lacks": _lacks(states, len(scores)),
        }

    def _judged(self, row: Row, metric: str) -> Cell:
        """A cell with its lead over the control and, by the paper's protocol, what it says of the printed values."""
        cell = self._cell(row, metric) | {"delta": None, "verdict": "", "note": ""}
        printed, runs = cell["published"], self.table.published_runs
        control = control_of(row, self._at_scale, self.table.control)
        if control and not self._printed:
            others = self._cell(control, metric)["scores"]
            cell["effect"], cell["effect_ci95"], cell["effect_n"] = paired(cell["scores"], others)
        if self.compare and printed is not None and cell["n"]:
            cell["delta"] = difference(cell["ours"], printed)
            of_control = self._cell(control, metric) if control and self.published.get(control.key(metric)) else None
            unsound = self._unsound(cell, of_control)
            if not unsound:
                cell["prediction"] = prediction(list(cell["scores"]), runs)
            if of_control:
                cell |= {"verdict": "open", "note": unsound or "no seed in common with the control"}
                if not unsound:
                    cell |= lead(cell["scores"], of_control["scores"], printed, of_control["published"], runs) or {}
        word = "published: none" if self.published and not printed else cell["verdict"]
        seeds = _count(cell) if 0 < cell["n"] < len(cell["states"]) else ""
        return {**cell, "status": "; ".join(filter(None, (seeds, cell["lacks"], word)))}

    def _unsound(self, cell: Cell, of_control: Cell | None) -> str:
        """Why the seeds of a cell may not be judged; empty if they may."""
        for owner, states in (("", cell["states"]), (" of the control", of_control["states"] if of_control else {})):
            for state in BROKEN:
                if state in states.values():
                    return f"{state} runs{owner}"
        complete = {seed for seed, state in cell["states"].items() if state == "complete"}
        return "" if complete <= {*self.suite.scale(self.plan.scale).seeds} else "other seeds than the suite's"

    def _layout(self, formatted: Callable[[Cell], str]) -> tuple[list[str], list[list[str]]]:
        """Heads and lines of what was run; columns are named by data set and, if there are several, metric."""
        several = len(self.table.metrics) > 1
        titles = [f"{self._data_label(data)} {metric if several else ''}".strip() for data, metric in self.places]
        body = []
        for keys in self.shown:
            cells = self.rows[keys]
            body.append([*keys, *(formatted(cells[place]) if place in cells else "" for place in self.places)])
        return ["method", *(name.replace("_", " ") for name in self.heads), *titles], body

    def _data_label(self, dataset: str) -> str:
        """The published data set, preceded by the one that replaces it at this scale, if any."""
        used = dict.fromkeys(cell["data"] for cell in self.cells if cell["dataset"] == dataset)
        same = all(_spelled(name) == _spelled(dataset) for name in used)
        return dataset if self.compare or same else f"{', '.join(used)} (as {dataset})"

    @property
    def markdown(self) -> str:
        """Heading, table, omitted rows, readings, facts and legend."""
        parts = [markdown(f"### Table {self.number}: {self.table.title}")]
        if self.shown:
            if self.published and not self.compare:
                parts.append(markdown(f"**Scale {self.plan.scale}: not the paper's protocol.**"))
            parts += [pipe_table(*self._layout(self._markdown_cell)), markdown(self._not_run()), markdown(self._open())]
        else:
            parts.append(NOTHING)
        if readings := self._readings():
            count = "four" if any("averaged" in cell for cell in self.cells) else "three"
            table = pipe_table(list(readings[0]), [list(line.values()) for line in readings])
            parts += [f"<details><summary>Accuracy, all {count} readings</summary>", table, "</details>"]
        parts += [markdown("; ".join(self._statements()) + "."), markdown(self._legend()) if self.shown else ""]
        return "\n\n".join(filter(None, parts)) + "\n"

    def _markdown_cell(self, cell: Cell) -> str:
        parts = [markdown(_ours(cell))]
        if self._printed:
            printed = _published(cell) or "none"
            if cell["delta"] is not None:
                expected = number(cell.get("prediction"), ", ± {:.2f}")
                printed += f" ({cell['delta']:+.{places(cell['published'])}f}{expected})"
            parts.append(markdown(printed) if self.compare else f"<sub>{markdown(printed)}</sub>")
        if effect := number(cell.get("effect"), "{:+.2f}"):
            parts.append(f"effect {effect}{half(cell['effect_ci95'])}")
            if "effect_places" in cell:
                parts[-1] += f" ({cell['effect_published']:+.{cell['effect_places']}f})"
        if cell["n"]:
            parts.append(markdown("; ".join(filter(None, (cell["lacks"], cell["verdict"])))))
        return Marked("<br>".join(filter(None, parts)))

    def _not_run(self) -> str:
        """A sentence on what is not shown; empty if nothing."""
        run = {dataset for dataset, _ in self.places}
        datasets = dict.fromkeys(cell["dataset"] for cell in self.cells if cell["dataset"] not in run)
        rows = [label for keys, label in self._labels.items() if keys not in self.shown]
        texts = [f"all of {', '.join(datasets)}"] if datasets else []
        texts += [f"the row{'s' if len(rows) > 1 else ''} {', '.join(rows)}"] if rows else []
        return f"Not run: {'; '.join(texts)}." if texts else ""

    def _open(self) -> str:
        """A sentence on why verdicts are open; empty if none is."""
        cells_of: dict[str, list[str]] = {}
        for keys, cells in self.rows.items():
            for (dataset, metric), cell in cells.items():
                of_metric = f" {metric}" if len(self.table.metrics) > 1 else ""
                cells_of.setdefault(cell["note"], []).append(f"{self._labels[keys]} {dataset}{of_metric}")
        texts = [f"{note} ({', '.join(names)})" for note, names in cells_of.items() if note]
        return f"Open: {'; '.join(texts)}." if texts else ""

    def _readings(self) -> list[dict[str, str]]:
        """Accuracy in all readings, a line for each row and data set that was run."""
        configs = [self.plan.runs[key].config for cell in self.cells for key in cell["runs"].split()]
        last = " or ".join(dict.fromkeys(map(last_rounds, configs)))
        averaged = " or ".join(dict.fromkeys(map(averaged_rounds, configs)))
        titles = {"best": "best round", "last": "last round", "last_k_mean": f"mean of the last {last}"}
        titles["averaged"] = f"averaged model of the last {averaged}"
        lines = []
        for cell in self.cells:
            if cell["metric"] == "acc" and cell["n"]:
                columns = {name.replace("_", " "): cell["row"].columns.get(name, "") for name in self.heads}
                readings = {titles[name]: number(cell[name]) for name in READING if name in cell}
                lines.append({"method": cell["method"], **columns, "data set": cell["dataset"], **readings})
        return lines

    def _statements(self) -> list[str]:
        return [f"{name}: {text}" if name else text for name, text in self.facts.items() if text or name in ALWAYS]

    def _legend(self) -> str:
        """How to read the numbers."""
        table, text = self.table, [OURS]
        if self.suite.ranked:
            text += [RANKED]
        if table.bounds:
            text += [f"Bounds, which know more labels than a method may: {', '.join(table.bounds)}."]
        effect = EFFECT.format(control=table.control)
        if not self._printed:
            text += [effect] if table.control else []
        elif self.compare:
            runs = table.published_runs
            further = "one further run" if runs == 1 else f"the mean of {runs} further runs"
            text += [LEVEL.format(further=further), f"{effect} {JUDGED}" if table.control else NO_LEAD]
        else:
            text += ["Published values, below ours, belong to the paper's data and protocol: no comparison is meant."]
        if self._printed:
            text += ["Published spreads are standard deviations, to be held against `std` in the CSV (divisor n − 1)."]
        return " ".join(text)

    @property
    def terminal(self) -> str:
        """A narrow table for a terminal: the first metric of the runs, one column per data set.

        Data sets that share their runs at a small scale share a column.
        """
        title = f"Table {self.number}: {self.table.title}"
        if not self.shown:
            return printable(f"{title}\n{NOTHING}\n")
        metric = self.places[0][1]
        titles: dict[tuple[str, ...], list[str]] = {}
        for dataset in [dataset for dataset, name in self.places if name == metric]:
            cells = [self.rows[keys].get((dataset, metric)) for keys in self.shown]
            column = tuple("" if cell is None else self._terminal_cell(cell) for cell in cells)
            titles.setdefault(column, []).append(self._data_label(dataset))
        body = zip([self._labels[keys] for keys in self.shown], *titles, strict=True)
        heads = ["method", *("\n".join(names) for names in titles.values())]
        table = tabulate(body, heads, tablefmt="simple", disable_numparse=True)
        printed = "; in brackets the published value" if self.compare and self._printed else ""
        where = f"{metric} in percent in {self.facts['reading']}, seeds {self.facts['seeds']}"
        about = [f"{where}: mean ± 95 % interval{printed}.", f"Scale {self.facts['scale']}."]
        return printable("\n".join([title, "", table, "", *(fill(text, WIDTH) for text in about)]) + "\n")

    def _terminal_cell(self, cell: Cell) -> str:
        if cell["ours"] is None:
            return _ours(cell)
        printed = f" ({cell['published']})" if self.compare and cell["published"] else ""
        missing = f" [{_count(cell)}]" if cell["n"] < len(cell["states"]) else ""
        return f"{cell['ours']:.1f}{number(cell['ci95'], ' ± {:.1f}')}{printed}{missing}"

    @property
    def latex(self) -> str:
        """A ``booktabs`` table of the runs, preceded by facts as comments."""
        read = f"{OURS} In brackets the published value." if self._printed else OURS
        comments = [f"Table {self.number}: {self.table.title}", read, *self._statements()]
        return latex_table(comments, *self._layout(_latex_cell))


def _lacks(states: Mapping[int, str], n: int) -> str:
    """Why seeds have no value, e.g. ``failed (1)``; if none has one, ``not run`` or ``no value``; else empty."""
    listed = list(states.values())
    counts = [f"{state} ({listed.count(state)})" for state in LACKS if state in listed and state != "missing"]
    if counts and n < len(states):
        return "; ".join(counts)
    return "" if n else "not run" if "missing" in listed else "no value"


def _rank(cell: Cell) -> tuple[int, float]:
    """Where a row of a ranked suite stands: by failed runs, so that survivors place no row, then by the mean."""
    failed = [state for state in cell["states"].values() if state == "failed"]
    return len(failed), math.inf if cell["ours"] is None else -cell["ours"]


def _touched(cell: Cell) -> bool:
    """Whether any seed of a cell has been run."""
    return cell["lacks"] != "not run"


def _count(cell: Cell) -> str:
    """Number of seeds in the mean: ``3``, or ``1 of 3``."""
    n, planned = cell["n"], len(cell["states"])
    return f"{n} of {planned}" if n < planned else str(n)


def _ours(cell: Cell) -> str:
    """Mean, half-width and number of seeds, or why they are missing."""
    if cell["ours"] is None:
        return cell["lacks"] if _touched(cell) else "–"
    return f"{cell['ours']:.2f}{half(cell['ci95'])} ({_count(cell)})"


def _published(cell: Cell) -> str:
    """The printed value with its spread; empty if there is none."""
    return " ± ".join(filter(None, (cell["published"], cell["spread"])))


def _latex_cell(cell: Cell) -> str:
    return _ours(cell) + (f" [{_published(cell)}]" if cell["published"] else "")


def _spelled(name: str) -> str:
    """A name without what spelling changes: ``CIFAR-10`` as ``cifar10``."""
    return "".join(filter(str.isalnum, name)).lower()


def _mean(values: pd.Series) -> float | None:
    """The mean, rounded once."""
    return fmean(values) if len(values) else None
