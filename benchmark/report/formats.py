"""Frames and texts as CSV, Markdown and LaTeX."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from pandas.api.types import is_scalar
from tabulate import tabulate

from benchmark.runs.console import printable

BOLD = "\x02"  # prefix of texts to set in bold in LaTeX; does not occur in names
# LaTeX's special characters, and characters that its text fonts may lack.
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
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
    }
)


def numeric(frame: pd.DataFrame, texts_in: Sequence[str] = ()) -> pd.DataFrame:
    """Convert columns that contain only numbers (including printed ones) to numbers, except those named."""
    columns = {}
    for name in frame.columns.difference(list(texts_in), sort=False):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (numbers.notna() == frame[name].notna()).all():
            columns[name] = numbers.astype("float64")
    return frame.assign(**columns)


def csv_text(frame: pd.DataFrame) -> str:
    """Format CSV; numbers with four decimals, published values as printed (empty if missing).

    An apostrophe is put before texts that a spreadsheet would evaluate, such as ``=SUM(A1)``.
    """
    texts = {name: column.map(_inert) for name, column in frame.items() if any(map(_is_formula, column))}
    safe = frame.assign(**texts).rename(columns=_inert)
    return str(safe.to_csv(index=False, float_format="%.4f", lineterminator="\n"))


def _inert(cell: Any) -> Any:
    return f"'{cell}" if _is_formula(cell) else cell


def _is_formula(cell: Any) -> bool:
    """Whether a spreadsheet would evaluate a cell, even behind blanks; not for numbers and dashes."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("=", "+", "-", "@")) or cell == "-":
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


class Marked(str):
    """A text with Markdown or HTML of our own; what it quotes is escaped already."""


def markdown(text: str) -> str:
    """Escape a text for Markdown, in one line: what it holds becomes no HTML, link or picture.

    Emphasis stays: the texts that we write ourselves have some.
    """
    if isinstance(text, Marked):
        return text
    return re.sub(r"[\\\[\]]|<(?=[A-Za-z/!?])", r"\\\g<0>", printable(" ".join(text.split("\n"))))


def pipe_table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table of escaped texts."""
    escaped = [[markdown(text).replace("|", "\\|") for text in row] for row in (heads, *body)]
    return str(tabulate(escaped[1:], escaped[0], tablefmt="pipe", disable_numparse=True))


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Format a frame for readers: two decimals, empty if missing, names without underscores."""
    shown = pd.DataFrame({name: [cell_text(value) for value in frame[name]] for name in frame}, dtype=object)
    return shown.rename(columns=lambda name: str(name).replace("_", " "))


def cell_text(value: Any) -> str:
    """Format a value of a frame for readers."""
    if value is None or (is_scalar(value) and pd.isna(value)):
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def latex_table(frame: pd.DataFrame, caption: str, name: str, heads: int = 1) -> str:
    """Format a ``booktabs`` table of escaped texts.

    Args:
        frame: the table.
        caption: its caption.
        name: its label, after ``tab:``; what LaTeX does not take there becomes a hyphen.
        heads: columns of names, which are aligned to the left.
    """
    style = frame.style.hide(axis="index").format(latex_text).format_index(latex_text, axis="columns")
    return str(
        style.to_latex(
            hrules=True,
            position="t",
            position_float="centering",
            column_format="l" * heads + "r" * (frame.shape[1] - heads),
            caption=latex_text(caption.strip()),
            label=f"tab:{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}",
        )
    )


def latex_bold(text: str) -> str:
    """Mark a text to be set in bold by ``latex_table``."""
    return f"{BOLD}{text}"


def latex_text(value: object) -> str:
    """Escape a text for LaTeX; in bold if marked by ``latex_bold``."""
    text = str(value)
    escaped = text.removeprefix(BOLD).translate(LATEX)
    return rf"\textbf{{{escaped}}}" if text.startswith(BOLD) else escaped


def latex_comment(text: str) -> str:
    """Format a text as a LaTeX comment in one line."""
    return f"% {' '.join(text.split())}"
