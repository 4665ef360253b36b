"""Tables in the published layout, methods as rows and data sets as columns, as Markdown, LaTeX and CSV."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype, is_scalar
from tabulate import tabulate

from benchmark.report.verdicts import Effect, Level, places
from benchmark.suites.plan import Row, Table

UNTOUCHED = ("not run", "pending")  # what a cell lacks that need not be shown
NONE_RUN = "–"
WIDTH = 100  # columns of text in a terminal
UNPUBLISHED = Table.unpublished  # stands where nothing says why there is no published value
OURS = "Ours: mean ± half-width of the 95 % t interval (number of seeds), in percent."
BOLD = "\x02"  # before a text that LaTeX sets in bold; no name has it
# What LaTeX would read as a command, and signs that its text fonts may lack.
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "%": r"\%",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "Δ": r"$\Delta$",
        "×": r"$\times$",
        "−": "$-$",
        "–": "--",
    }
)


@dataclass(frozen=True)
class Line:
    """One metric of one row of a suite's table: a cell of the published table.

    Args:
        row: the suite's row.
        metric: name of the metric.
        data: data set that the runs use, ``-`` where that is not known.
        network: network that they train, with its arguments.
        ours: mean over the seeds that have a value, in percent; ``None`` where none has.
        std: standard deviation over these seeds.
        ci95: half-width of the 95 % t interval of the mean.
        n: seeds that have a value.
        planned: seeds that the row is planned with.
        readings: of accuracy, the means of the readings ``best``, ``last`` and ``last_k_mean``, and of ``averaged``
            where the runs have it; of others ``None``.
        published: value as printed, or ``None``.
        spread: printed spread over seeds, or ``None``.
        delta: ours, rounded as printed, minus published, at a scale that compares.
        level: the printed value against our prediction interval, at such a scale.
        effect: the row minus the table's control, at such a scale.
        lacks: what keeps seeds from having a value, e.g. ``failed (1)``, ``not run`` or ``pending``.
        verdict: on level and effect, or why there is no published value; see ``verdicts.judge``.
        note: why there is no verdict.
        runs: run ids, each once, in the order of the seeds.
    """

    row: Row
    metric: str
    data: str
    network: str
    ours: float | None
    std: float | None
    ci95: float | None
    n: int
    planned: int
    readings: Mapping[str, float | None]
    published: str | None
    spread: str | None
    delta: float | None
    level: Level | None
    effect: Effect | None
    lacks: str
    verdict: str
    note: str
    runs: tuple[str, ...]

    @property
    def untouched(self) -> bool:
        """Whether no seed has been run, so that the cell has nothing of ours to show."""
        return not self.n and self.lacks in UNTOUCHED

    @property
    def count(self) -> str:
        """Seeds behind the mean: ``3``, or ``1 of 3``."""
        return f"{self.n} of {self.planned}" if self.n < self.planned else str(self.n)

    @property
    def status(self) -> str:
        """What is missing, and the verdict: ``4 of 5; running (1); level only``."""
        seeds = self.count if 0 < self.n < self.planned else ""
        return "; ".join(filter(None, (seeds, self.lacks, self.verdict)))

    @property
    def judgement(self) -> str:
        """What is missing beside the count of seeds, and the verdict if the cell is held against a printed value."""
        verdict = "" if self.delta is None else self.verdict
        return "; ".join(filter(None, (self.lacks, verdict)))

    @property
    def ours_text(self) -> str:
        """Mean, half-width and number of seeds, or what is there instead."""
        if self.ours is None:
            return NONE_RUN if self.untouched else self.lacks
        half = "" if self.ci95 is None else f" ± {self.ci95:.2f}"
        return f"{self.ours:.2f}{half} ({self.count})"

    @property
    def published_text(self) -> str:
        """The printed value, with its spread; empty where there is none."""
        return f"{self.published} ± {self.spread}" if self.published and self.spread else self.published or ""

    @property
    def delta_text(self) -> str:
        """The difference with its sign and as many decimals as the printed value has."""
        return "" if self.delta is None else f"{self.delta:+.{places(self.published or '')}f}"

    @property
    def level_text(self) -> str:
        """The difference and, behind it, the half-width of the prediction interval that it is held against."""
        return f"{self.delta_text}, ± {self.level.half:.2f}" if self.level and self.delta_text else self.delta_text

    @property
    def effect_text(self) -> str:
        """The effect with its half-width, and the printed one in brackets; empty where there is none."""
        of = self.effect
        return "" if of is None else f"{of.ours:+.2f} ± {of.half:.2f} ({of.printed:+.{of.places}f})"


@dataclass(frozen=True)
class Section:
    """A further table under a table.

    Args:
        title: one line.
        note: sentences that say how to read it; may be empty.
        frame: the table.
    """

    title: str
    note: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Layout:
    """A table as published.

    Args:
        heads: names of the columns that tell rows apart, ``method`` first.
        columns: data set and metric of each further column.
        rows: per row, the values of ``heads`` and the cells; ``None`` where the suite has no such row.
    """

    heads: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Line | None, ...]], ...]

    def touched_data(self) -> set[str]:
        """Data sets of which something was run."""
        return {
            dataset
            for _, cells in self.rows
            for (dataset, _), line in zip(self.columns, cells, strict=True)
            if line is not None and not line.untouched
        }

    def only_run(self) -> "Layout":
        """Without the rows and data sets of which nothing was run."""
        kept = self.touched_data()
        chosen = [n for n, (dataset, _) in enumerate(self.columns) if dataset in kept]
        rows = [(keys, tuple(cells[n] for n in chosen)) for keys, cells in self.rows if touched(cells)]
        return Layout(self.heads, tuple(self.columns[n] for n in chosen), tuple(rows))

    def labels(self) -> list[str]:
        """A name per row: its method, and its other columns where several rows have this method."""
        methods = [keys[0] for keys, _ in self.rows]
        short = [keys[0] if methods.count(keys[0]) == 1 else " ".join(filter(None, keys)) for keys, _ in self.rows]
        if len(set(short)) == len(short):
            return short
        named = [[f"{head} {key}" for head, key in zip(self.heads, keys, strict=True) if key] for keys, _ in self.rows]
        return [" ".join([keys[0], *parts[1:]]) for (keys, _), parts in zip(self.rows, named, strict=True)]

    def untouched(self) -> str:
        """A sentence on what ``only_run`` leaves out; empty if that is nothing."""
        data = [d for d in dict.fromkeys(dataset for dataset, _ in self.columns) if d not in self.touched_data()]
        named = [label for label, (_, cells) in zip(self.labels(), self.rows, strict=True) if not touched(cells)]
        told = [f"all of {', '.join(data)}"] if data else []
        told += [f"the rows {', '.join(named)}" if len(named) > 1 else f"the row {named[0]}"] if named else []
        return f"Not run: {'; '.join(told)}." if told else ""


@dataclass(frozen=True)
class Rendered:
    """One table of a suite at one scale, in all its forms.

    Args:
        name: ``<paper>-<scale>-<number>``.
        number: of the table.
        title: of the table.
        scale: name of the scale; ``facts`` say what it stands for.
        compare: whether the scale is the paper's protocol, so that numbers are held against the published.
        lines: one per row and metric.
        frame: the same as a data frame, in the long form of the CSV.
        columns: what tells rows of one method apart.
        facts: of the runs, by name: data, rounds, seeds, hardware, code, what is missing.
        legend: how to read the numbers.
        unpublished: stands where a value is not in the published file.
        sections: further tables under it.
    """

    name: str
    number: str
    title: str
    scale: str
    compare: bool
    lines: tuple[Line, ...]
    frame: pd.DataFrame
    columns: tuple[str, ...]
    facts: Mapping[str, str]
    legend: str
    unpublished: str
    sections: tuple[Section, ...]

    @property
    def layout(self) -> Layout:
        """The table as published, whole."""
        heads = varying(self.lines, self.columns)
        columns = tuple(dict.fromkeys((line.row.dataset, line.metric) for line in self.lines))
        cells: dict[tuple[str, ...], dict[tuple[str, str], Line]] = {}
        for line in self.lines:
            keys = (line.row.method, *(line.row.columns.get(c, "") for c in heads))
            cells.setdefault(keys, {})[line.row.dataset, line.metric] = line
        rows = tuple((keys, tuple(of_row.get(column) for column in columns)) for keys, of_row in cells.items())
        return Layout(("method", *(c.replace("_", " ") for c in heads)), columns, rows)

    @property
    def wide(self) -> pd.DataFrame:
        """What was run in the published layout, numbers as numbers: per data set and metric ours, ``±`` (half-width of
        the 95 % interval) and, where some are printed, the published value.
        """
        shown = self.layout.only_run()
        several = len({metric for _, metric in shown.columns}) > 1
        body = []
        for keys, cells in shown.rows:
            line: dict[str, Any] = dict(zip(shown.heads, keys, strict=True))
            for (dataset, metric), cell in zip(shown.columns, cells, strict=True):
                name = f"{self.data_label(dataset)} {metric}" if several else self.data_label(dataset)
                line |= {name: cell and cell.ours, f"{name} ±": cell and cell.ci95}
                if self.printed:
                    line[f"{name} published"] = cell and cell.published
            body.append(line)
        return numeric(pd.DataFrame(body), shown.heads)

    @property
    def of_paper(self) -> bool:
        """Whether the suite is a paper's."""
        return "published" in self.frame

    @property
    def printed(self) -> bool:
        """Whether the paper has values for this table, known to us or not."""
        known = any(line.published for line in self.lines)
        return self.of_paper and (known or self.unpublished != UNPUBLISHED)

    @property
    def csv(self) -> str:
        """The frame as CSV: a line per row and metric."""
        return csv_text(self.frame)

    def data_label(self, dataset: str) -> str:
        """The data set as published and, where a scale puts another in its place, that one before it."""
        used = dict.fromkeys(line.data for line in self.lines if line.row.dataset == dataset)
        same = all(same_name(name, dataset) for name in used)
        return dataset if self.compare or same else f"{', '.join(used)} (as {dataset})"

    @property
    def unjudged(self) -> str:
        """A sentence on the cells without a verdict, by reason; empty where there is none."""
        layout, cells_of = self.layout, dict[str, list[str]]()
        several = len({metric for _, metric in layout.columns}) > 1
        for label, (_, cells) in zip(layout.labels(), layout.rows, strict=True):
            for (dataset, metric), line in zip(layout.columns, cells, strict=True):
                if line is not None and line.note:
                    cells_of.setdefault(line.note, []).append(f"{label} {dataset}{f' {metric}' if several else ''}")
        told = [f"{note} ({', '.join(cells)})" for note, cells in cells_of.items()]
        return f"No verdict: {'; '.join(told)}." if told else ""

    @property
    def markdown(self) -> str:
        """Heading, table, what is not shown, facts and legend."""
        whole = self.layout
        shown = whole.only_run()
        parts = [f"### Table {self.number}: {self.title}"]
        if shown.rows:
            stands_in = self.of_paper and not self.compare
            parts += [f"**Scale {self.scale}: not the paper's protocol.**"] if stands_in else []
            several = len({metric for _, metric in shown.columns}) > 1
            names = [f"{self.data_label(d)}{f' {metric}' if several else ''}" for d, metric in shown.columns]
            body = [[*keys, *(self._markdown_cell(line) for line in cells)] for keys, cells in shown.rows]
            parts += [pipe_table([*shown.heads, *names], body), whole.untouched(), self.unjudged]
        else:
            parts += ["Nothing of this table has been run."]
            if self.printed and not any(line.published for line in self.lines):
                parts += [f"Published values: {self.unpublished}."]
        for section in self.sections:
            parts += [markdown_section(section)]
        facts = [f"{name}: {text}" if name else text for name, text in self.facts.items()]
        parts += ["; ".join(facts) + ".", self.legend if shown.rows else ""]
        return "\n\n".join(filter(None, parts)) + "\n"

    @property
    def terminal(self) -> str:
        """A narrow table for a terminal: the first metric of what was run, a column per data set.

        Data sets that a small scale runs as one share a column.
        """
        shown = self.layout.only_run()
        title = f"Table {self.number}: {self.title}"
        if not shown.rows:
            return f"{title}\nNothing of this table has been run.\n"
        metric = shown.columns[0][1]
        kept = [n for n, (_, name) in enumerate(shown.columns) if name == metric]
        columns: dict[tuple[str, ...], list[str]] = {}  # those of the same runs stand once
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
        return "\n".join([title, "", table, "", *wrap(about, WIDTH), *wrap(scale, WIDTH)]) + "\n"

    @property
    def latex(self) -> str:
        """A ``booktabs`` table of what was run, facts as comments before it, and its sections."""
        shown = self.layout.only_run()
        facts = [_comment(f"{name}: {text}" if name else text) for name, text in self.facts.items()]
        if not shown.rows:
            return "\n".join([_comment(f"Table {self.number}: {self.title}: nothing has been run."), *facts]) + "\n"
        several = len({metric for _, metric in shown.columns}) > 1
        names: list[tuple[str, ...]] = [("", *[""] * several, head) for head in shown.heads]
        for dataset, metric in shown.columns:
            above = (self.data_label(dataset), metric) if several else (self.data_label(dataset),)
            names += [(*above, name) for name in self._latex_parts()]
        body = [[*keys, *(text for line in cells for text in self._latex_cell(line))] for keys, cells in shown.rows]
        frame = pd.DataFrame(body, columns=pd.MultiIndex.from_tuples(names))
        align = "l" * len(shown.heads) + "r" * (frame.shape[1] - len(shown.heads))
        made = [latex_table(frame, f"{self.title}. Scale {self.facts['scale']}. {OURS}", self.name, align)]
        for n, section in enumerate(self.sections, start=1):
            align = "".join("r" if is_numeric_dtype(section.frame[name]) else "l" for name in section.frame)
            about = f"{self.title}: {section.title}. {section.note}"
            made.append(latex_table(texts(section.frame), about, f"{self.name}-{n}", align))
        return "\n".join([*facts, *made])

    def _markdown_cell(self, line: Line | None) -> str:
        if line is None:
            return ""
        parts = [line.ours_text]
        if self.printed:
            told = line.published_text or self.unpublished
            shown = f"{told} ({line.level_text})" if line.level_text else told
            parts += [shown if self.compare else f"<sub>{shown}</sub>"]
        if line.effect:
            parts += [f"effect {line.effect_text}"]
        if line.n:
            parts += [line.judgement]
        return "<br>".join(filter(None, parts))

    def _terminal_cell(self, line: Line | None) -> str:
        if line is None or line.ours is None:
            return "" if line is None else NONE_RUN if line.untouched else line.lacks
        half = "" if line.ci95 is None else f" ± {line.ci95:.1f}"
        printed = f" ({line.published})" if self.compare and line.published else ""
        missing = f" [{line.count}]" if line.n < line.planned else ""
        return f"{line.ours:.1f}{half}{printed}{missing}"

    def _latex_parts(self) -> list[str]:
        effects = any(line.effect for line in self.lines)
        return ["ours", *["published"] * self.printed, *["Δ"] * self.compare, *["effect"] * effects]

    def _latex_cell(self, line: Line | None) -> list[str]:
        if line is None:
            return [""] * len(self._latex_parts())
        values = {"ours": line.ours_text, "published": line.published_text or self.unpublished, "Δ": line.level_text}
        values["effect"] = line.effect_text
        return [values[part] for part in self._latex_parts()]


def numeric(frame: pd.DataFrame, texts_in: Sequence[str] = ()) -> pd.DataFrame:
    """The frame with numbers in all columns that hold nothing else, printed ones too, but those named."""
    columns = {}
    for name in frame.columns.difference(list(texts_in), sort=False):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (numbers.notna() == frame[name].notna()).all():
            columns[name] = numbers.astype("float64")
    return frame.assign(**columns)


def varying(lines: Iterable[Line], columns: Iterable[str]) -> list[str]:
    """Columns that tell rows apart, having more than one value."""
    return [c for c in columns if len({line.row.columns.get(c) for line in lines}) > 1]


def touched(cells: Iterable[Line | None]) -> bool:
    """Whether a seed of some cell has been run."""
    return any(line is not None and not line.untouched for line in cells)


def csv_text(frame: pd.DataFrame) -> str:
    """CSV; numbers with four decimals, published values as printed (empty where there is none).

    Before a text that a spreadsheet would compute, such as ``=SUM(A1)``, stands an apostrophe.
    """
    texts = {name: column.map(_inert) for name, column in frame.items() if any(map(_is_formula, column))}
    safe = frame.assign(**texts).rename(columns=_inert)
    return str(safe.to_csv(index=False, float_format="%.4f", lineterminator="\n"))


def _inert(cell: Any) -> Any:
    return f"'{cell}" if _is_formula(cell) else cell


def _is_formula(cell: Any) -> bool:
    """Whether a spreadsheet would compute a cell; numbers, printed ones too, are none, nor is a dash."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")) or cell == "-":
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def pipe_table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar in a text does not end its cell."""
    escaped = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in (heads, *body)]
    return str(tabulate(escaped[1:], escaped[0], tablefmt="pipe", disable_numparse=True))


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as people read it: two decimals, empty where there is nothing, names without underscores."""
    shown = pd.DataFrame({name: [cell_text(value) for value in frame[name]] for name in frame}, dtype=object)
    return shown.rename(columns=lambda name: str(name).replace("_", " "))


def cell_text(value: Any) -> str:
    """A value of a frame as people read it."""
    if value is None or (is_scalar(value) and pd.isna(value)):
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def latex_table(frame: pd.DataFrame, caption: str, name: str, align: str) -> str:
    """A ``booktabs`` table of texts, all of them escaped; ``align`` has ``l`` or ``r`` for each column."""
    style = frame.style.hide(axis="index").format(latex_text).format_index(latex_text, axis="columns")
    return str(
        style.to_latex(
            hrules=True,
            multicol_align="c",
            position="t",
            position_float="centering",
            column_format=align,
            caption=latex_text(caption.strip()),
            label=f"tab:{name}",
        )
    )


def latex_bold(text: str) -> str:
    """A text that ``latex_table`` sets in bold."""
    return f"{BOLD}{text}"


def latex_text(value: object) -> str:
    """A text in which LaTeX finds no command, in bold if ``latex_bold`` says so."""
    text = str(value)
    escaped = text.removeprefix(BOLD).translate(LATEX)
    return rf"\textbf{{{escaped}}}" if text.startswith(BOLD) else escaped


def _comment(text: str) -> str:
    """A text as one line that LaTeX skips."""
    return f"% {' '.join(text.split())}"


def same_name(one: str, other: str) -> bool:
    """Whether two names differ in their spelling alone: ``CIFAR-10`` and ``cifar10``."""
    first, second = ("".join(filter(str.isalnum, name)).lower() for name in (one, other))
    return first == second


def markdown_section(section: Section) -> str:
    """The section as what unfolds under its title."""
    shown = texts(section.frame)
    parts = [
        f"<details><summary>{section.title}</summary>",
        section.note,
        pipe_table(list(shown.columns), shown.to_numpy().tolist()),
        "</details>",
    ]
    return "\n\n".join(filter(None, parts))
