"""Frames and texts as CSV, Markdown and LaTeX."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from benchmark.runs.console import printable

FORMULA = re.compile(r"\s*(?:[=@]|[+-](?!\.?\d|$))")
SIGNS = str.maketrans({"±": r"$\pm$", "Δ": r"$\Delta$", "×": r"$\times$", "–": "--", "|": "$|$"})
"""Characters that LaTeX's text fonts may lack, beside those that tabulate replaces."""


def csv_text(frame: pd.DataFrame) -> str:
    """Format CSV; floats with four decimals, published values as printed (empty if missing).

    An apostrophe is put before texts that a spreadsheet would evaluate, such as ``=SUM(A1)``.
    """
    return str(frame.map(inert).rename(columns=inert).to_csv(index=False, float_format="%.4f", lineterminator="\n"))


def inert(cell: Any) -> Any:
    """A cell that no spreadsheet evaluates."""
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


def number(value: Any, form: str = "{:.2f}") -> str:
    """Format a number; empty if it is missing."""
    return "" if pd.isna(value) else form.format(value)


def half(value: Any) -> str:
    """Format the half-width of an interval, to stand behind its middle; empty if it is missing."""
    return number(value, " ± {:.2f}")


class Marked(str):
    """A text with Markdown or HTML of our own; what it quotes is escaped already."""


def markdown(text: str) -> str:
    """Escape a text for Markdown, in one line: what it holds becomes no HTML, link or picture.

    Emphasis stays: the texts that we write ourselves have some.
    """
    if isinstance(text, Marked):
        return text
    return re.sub(r"[\\\[\]]|<(?=[A-Za-z/!?])", r"\\\g<0>", printable(text.replace("\n", " ")))


def pipe_table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table of escaped texts."""
    escaped = [[markdown(text).replace("|", "\\|") for text in row] for row in (heads, *body)]
    return str(tabulate(escaped[1:], escaped[0], tablefmt="pipe", disable_numparse=True))


def latex_table(facts: Sequence[str], heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a ``booktabs`` table of escaped texts, without a body nothing; above it facts about it, as comments.

    What stands between two stars, as in Markdown, is bold.
    """
    comments = [f"% {' '.join(text.split())}" for text in facts]
    table = tabulate(body, heads, tablefmt="latex_booktabs", disable_numparse=True).translate(SIGNS) if body else ""
    return "\n".join([*comments, re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", table)])
