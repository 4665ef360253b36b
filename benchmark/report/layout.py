"""Tables in the published layout: methods as rows, data sets as columns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap

import pandas as pd
from tabulate import tabulate

from benchmark.report.cells import NONE_RUN, Cell
from benchmark.report.formats import Marked, csv_text, latex_comment, latex_table, markdown, pipe_table, texts
from benchmark.runs.console import printable
from benchmark.suites.plan import Table

WIDTH = 100  # characters per line in a terminal
UNPUBLISHED = Table.unpublished  # default reason for a missing published value
OURS = "Ours: mean ± half-width of the 95 % t interval (number of seeds), in percent."


@dataclass(frozen=True)
class Layout:
    """A table as published.

    Args:
        heads: names of the columns that identify rows, ``method`` first.
        columns: data set and metric of each other column.
        rows: per row, the values of ``heads`` and the cells; ``None`` if the suite has no such row.
    """

    heads: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Cell | None, ...]], ...]

    @property
    def several(self) -> bool:
        """Whether the cells are of several metrics."""
        return len({metric for _, metric in self.columns}) > 1

    def touched_data(self) -> set[str]:
        """Data sets with any run."""
        return {
            dataset
            for _, cells in self.rows
            for (dataset, _), line in zip(self.columns, cells, strict=True)
            if line is not None and not line.untouched
        }

    def only_run(self) -> "Layout":
        """Return the layout without the rows and data sets that have no run."""
        kept = self.touched_data()
        chosen = [n for n, (dataset, _) in enumerate(self.columns) if dataset in kept]
        rows = [(keys, tuple(cells[n] for n in chosen)) for keys, cells in self.rows if touched(cells)]
        return Layout(self.heads, tuple(self.columns[n] for n in chosen), tuple(rows))

    def labels(self) -> list[str]:
        """Return a name per row: its method, with its other columns if several rows have this method."""
        methods = [keys[0] for keys, _ in self.rows]
        short = [keys[0] if methods.count(keys[0]) == 1 else " ".join(filter(None, keys)) for keys, _ in self.rows]
        if len(set(short)) == len(short):
            return short
        named = [[f"{head} {key}" for head, key in zip(self.heads, keys, strict=True) if key] for keys, _ in self.rows]
        return [" ".join([keys[0], *parts[1:]]) for (keys, _), parts in zip(self.rows, named, strict=True)]

    def untouched(self) -> str:
        """Return a sentence on what ``only_run`` leaves out; empty if nothing."""
        data = [d for d in dict.fromkeys(dataset for dataset, _ in self.columns) if d not in self.touched_data()]
        named = [label for label, (_, cells) in zip(self.labels(), self.rows, strict=True) if not touched(cells)]
        told = [f"all of {', '.join(data)}"] if data else []
        told += [f"the rows {', '.join(named)}" if len(named) > 1 else f"the row {named[0]}"] if named else []
        return f"Not run: {'; '.join(told)}." if told else ""


@dataclass(frozen=True)
class Rendered:
    """One table of a suite at one scale, in all formats.

    Args:
        name: ``<paper>-<scale>-<number>``.
        number: number of the table.
        title: title of the table.
        scale: name of the scale; ``facts`` explain it.
        compare: whether the scale is the paper's protocol, so that values are compared with the published ones.
        cells: one per row and metric.
        frame: the same as a data frame, in the long form of the CSV.
        columns: columns that identify rows of the same method.
        facts: facts about the runs by name: data, rounds, seeds, hardware, code, what is missing.
        legend: how to read the numbers.
        unpublished: text for values that are not in the published file.
        readings: accuracy in all readings, a line for each row and data set that was run.
    """

    name: str
    number: str
    title: str
    scale: str
    compare: bool
    cells: tuple[Cell, ...]
    frame: pd.DataFrame
    columns: tuple[str, ...]
    facts: Mapping[str, str]
    legend: str
    unpublished: str
    readings: pd.DataFrame

    @property
    def layout(self) -> Layout:
        """The whole table as published."""
        heads = varying(self.cells, self.columns)
        columns = tuple(dict.fromkeys((line.row.dataset, line.metric) for line in self.cells))
        cells: dict[tuple[str, ...], dict[tuple[str, str], Cell]] = {}
        for line in self.cells:
            keys = (line.row.method, *(line.row.columns.get(c, "") for c in heads))
            cells.setdefault(keys, {})[line.row.dataset, line.metric] = line
        rows = tuple((keys, tuple(of_row.get(column) for column in columns)) for keys, of_row in cells.items())
        return Layout(("method", *(c.replace("_", " ") for c in heads)), columns, rows)

    @property
    def of_paper(self) -> bool:
        """Whether the suite belongs to a paper."""
        return "published" in self.frame

    @property
    def printed(self) -> bool:
        """Whether the paper has values for this table, whether or not we know them."""
        known = any(line.published for line in self.cells)
        return self.of_paper and (known or self.unpublished != UNPUBLISHED)

    @property
    def csv(self) -> str:
        """The frame as CSV: one line per row and metric."""
        return csv_text(self.frame)

    def data_label(self, dataset: str) -> str:
        """Return the published data set, preceded by the one that replaces it at this scale, if any."""
        used = dict.fromkeys(line.data for line in self.cells if line.row.dataset == dataset)
        same = all(same_name(name, dataset) for name in used)
        return dataset if self.compare or same else f"{', '.join(used)} (as {dataset})"

    @property
    def unjudged(self) -> str:
        """Return a sentence on why verdicts are open; empty if none is."""
        layout, cells_of = self.layout, dict[str, list[str]]()
        for label, (_, cells) in zip(layout.labels(), layout.rows, strict=True):
            for (dataset, metric), line in zip(layout.columns, cells, strict=True):
                if line is not None and line.judged.note:
                    cell = f"{label} {dataset} {metric}" if layout.several else f"{label} {dataset}"
                    cells_of.setdefault(line.judged.note, []).append(cell)
        told = [f"{note} ({', '.join(cells)})" for note, cells in cells_of.items()]
        return f"Open: {'; '.join(told)}." if told else ""

    @property
    def markdown(self) -> str:
        """Heading, table, omitted rows, facts and legend."""
        whole = self.layout
        run = whole.only_run()
        parts = [markdown(f"### Table {self.number}: {self.title}")]
        if run.rows:
            stands_in = self.of_paper and not self.compare
            parts += [markdown(f"**Scale {self.scale}: not the paper's protocol.**")] if stands_in else []
            body = [[*keys, *(self._markdown_cell(line) for line in cells)] for keys, cells in run.rows]
            parts += [
                pipe_table([*run.heads, *self._titles(run)], body),
                markdown(whole.untouched()),
                markdown(self.unjudged),
            ]
        else:
            parts += ["Nothing of this table has been run."]
            if self.printed and not any(line.published for line in self.cells):
                parts += [markdown(f"Published values: {self.unpublished}.")]
        if len(self.readings):
            count = "four" if any("averaged" in line.readings for line in self.cells) else "three"
            shown = texts(self.readings)
            table = pipe_table(list(shown.columns), shown.to_numpy().tolist())
            parts += [f"<details><summary>Accuracy, all {count} readings</summary>", table, "</details>"]
        facts = [f"{name}: {text}" if name else text for name, text in self.facts.items()]
        parts += [markdown("; ".join(facts) + "."), markdown(self.legend) if run.rows else ""]
        return "\n\n".join(filter(None, parts)) + "\n"

    @property
    def terminal(self) -> str:
        """Format a narrow table for a terminal: the first metric of the runs, one column per data set.

        Data sets that share their runs at a small scale share a column.
        """
        shown = self.layout.only_run()
        title = f"Table {self.number}: {self.title}"
        if not shown.rows:
            return printable(f"{title}\nNothing of this table has been run.\n")
        metric = shown.columns[0][1]
        kept = [n for n, (_, name) in enumerate(shown.columns) if name == metric]
        columns: dict[tuple[str, ...], list[str]] = {}  # data sets with the same runs share one
        for n in kept:
            texts_of = tuple(self._terminal_cell(cells[n]) for _, cells in shown.rows)
            columns.setdefault(texts_of, []).append(self.data_label(shown.columns[n][0]))
        body = [[label, *(column[n] for column in columns)] for n, label in enumerate(shown.labels())]
        names = ["\n".join(own) for own in columns.values()]
        table = tabulate(body, ["method", *names], tablefmt="simple", disable_numparse=True)
        printed = "; in brackets the published value" if self.compare and self.printed else ""
        where = f"{metric} in percent in {self.facts['reading']}, seeds {self.facts['seeds']}"
        about = f"{where}: mean ± 95 % interval{printed}."
        scale = f"Scale {self.facts['scale']}."
        return printable("\n".join([title, "", table, "", *wrap(about, WIDTH), *wrap(scale, WIDTH)]) + "\n")

    @property
    def latex(self) -> str:
        """A ``booktabs`` table of the runs, preceded by facts as comments."""
        shown = self.layout.only_run()
        facts = [latex_comment(f"{name}: {text}" if name else text) for name, text in self.facts.items()]
        if not shown.rows:
            return (
                "\n".join([latex_comment(f"Table {self.number}: {self.title}: nothing has been run."), *facts]) + "\n"
            )
        body = [[*keys, *map(self._latex_cell, cells)] for keys, cells in shown.rows]
        frame = pd.DataFrame(body, columns=[*shown.heads, *self._titles(shown)])
        printed = " In brackets the published value." if self.printed else ""
        caption = f"{self.title}. Scale {self.facts['scale']}. {OURS}{printed}"
        return "\n".join([*facts, latex_table(frame, caption, self.name, len(shown.heads))])

    def _titles(self, layout: Layout) -> list[str]:
        """Name the columns of cells by data set and, if there are several, metric."""
        labels = [(self.data_label(dataset), metric) for dataset, metric in layout.columns]
        return [f"{label} {metric}" if layout.several else label for label, metric in labels]

    def _markdown_cell(self, line: Cell | None) -> str:
        if line is None:
            return ""
        parts = [markdown(line.ours_text)]
        if self.printed:
            told = line.published_text or self.unpublished
            shown = markdown(f"{told} ({line.level_text})" if line.level_text else told)
            parts += [shown if self.compare else f"<sub>{shown}</sub>"]
        if line.judged.lead:
            parts += [f"effect {line.effect_text}"]
        if line.n:
            parts += [markdown(line.judgement)]
        return Marked("<br>".join(filter(None, parts)))

    def _terminal_cell(self, line: Cell | None) -> str:
        if line is None or line.ours is None:
            return "" if line is None else NONE_RUN if line.untouched else line.lacks
        half = "" if line.ci95 is None else f" ± {line.ci95:.1f}"
        printed = f" ({line.published})" if self.compare and line.published else ""
        missing = f" [{line.count}]" if line.n < line.planned else ""
        return f"{line.ours:.1f}{half}{printed}{missing}"

    @staticmethod
    def _latex_cell(line: Cell | None) -> str:
        return "" if line is None else line.ours_text + (f" [{line.published_text}]" if line.published else "")


def varying(cells: Iterable[Cell], columns: Iterable[str]) -> list[str]:
    """Return the columns with more than one value."""
    return [c for c in columns if len({line.row.columns.get(c) for line in cells}) > 1]


def touched(cells: Iterable[Cell | None]) -> bool:
    """Whether any seed of any cell has been run."""
    return any(line is not None and not line.untouched for line in cells)


def same_name(one: str, other: str) -> bool:
    """Whether two names differ only in spelling: ``CIFAR-10`` and ``cifar10``."""
    first, second = ("".join(filter(str.isalnum, name)).lower() for name in (one, other))
    return first == second
