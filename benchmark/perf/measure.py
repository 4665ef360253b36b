"""Timing: interleaved, after a warm-up, medians, with a probe of the machine."""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmark.runs.capacity import cores
from benchmark.runs.code_identity import code_version
from benchmark.runs.environment import cpu_model

Unit = Callable[..., Any]
REPEATS = 3
WIDTH = 160
FAILED = "failed: "
HEAD = "## "
INTRODUCTION = """# Speed

Measured by `make perf` on CPUs; `make perf-gpu` adds sections for a GPU. Both repeat all measurements. A section names
its machine, its code version, and the speed of a matrix product before and after it (equal on a quiet machine).

"""


class Section:
    """A table of measurements that grows line by line.

    Args:
        title: title of the table.
        headers: column names.
        note: explanation; errors in cells are appended to it.
        speed: measures how fast the machine is at the moment, in GFLOP/s; default: ``probe``.
    """

    def __init__(self, title: str, headers: Sequence[str], note: str, speed: Callable[[], float] | None = None) -> None:
        self.speed = speed or probe
        self.title, self.headers, self.note = title, headers, note
        self.rows, self.errors = list[list[Any]](), list[str]()
        self.before = self.after = self.speed()

    def add(self, rows: Sequence[Sequence[Any]]) -> "Section":
        """Append lines, padded if needed, with numbers in place of errors; return the section."""
        for row in rows:
            cells = [self._numbered(cell) for cell in row]
            self.rows.append([*cells, *[""] * (len(self.headers) - len(cells))])
        self.after = self.speed()
        return self

    def _numbered(self, cell: Any) -> Any:
        if not (isinstance(cell, str) and cell.startswith(FAILED)):
            return cell
        error = cell.removeprefix(FAILED)
        if error not in self.errors:
            self.errors.append(error)
            self.note += f" [{len(self.errors)}] {error}."
        return f"failed [{1 + self.errors.index(error)}]"

    def text(self, markdown: bool = False) -> str:
        """Format the table as plain text or Markdown; floats have three significant digits."""
        table = aligned([list(self.headers), *([_shown(cell) for cell in row] for row in self.rows)])
        title = f"{HEAD}{self.title}" if markdown else self.title
        speed = f"probe {self.before:.0f} -> {self.after:.0f} GFLOP/s"
        return f"{title}\n\n{table}\n\n{self.note} ({speed}; {machine()})\n"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format an aligned Markdown table; the first row has the column names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def machine() -> str:
    """Describe the code version and the machine."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{cpu_model()}, {cores()} cores, {gpu}, torch {torch.__version__}, code {code_version()}"


def merged(page: str, sections: Sequence[Section]) -> str:
    """Replace the sections of ``page`` with the same titles, and append new ones."""
    parts = {part.partition("\n")[0]: part for part in re.split(f"(?m)^{HEAD}", page)[1:]}
    for section in sections:
        parts[section.title] = section.text(markdown=True).removeprefix(HEAD)
    return HEAD.join([INTRODUCTION, *(part.strip("\n") + "\n\n" for part in parts.values())]).strip("\n") + "\n"


def probe() -> float:
    """GFLOP/s of a 1536 x 1536 matrix product with the current number of threads, a measure of other load."""
    import torch

    a = torch.randn(1536, 1536)
    a @ a
    start = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * 1536**3 / (time.perf_counter() - start) / 1e9


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, or if it fails a cell with ``FAILED`` and the error."""
    try:
        return work()
    except Exception as error:
        return f"{FAILED}{error_line(error)}"


def error_line(error: BaseException) -> str:
    """Type and first line of an error, truncated to fit a table."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


def seconds(unit: Unit) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    unit()
    return time.perf_counter() - start


def interleaved(units: Mapping[str, Unit], repeats: int = REPEATS) -> dict[str, float]:
    """Median seconds of each unit, run in turn ``repeats`` times after one warm-up turn."""
    taken: dict[str, list[float]] = {name: [] for name in units}
    for turn in range(repeats + 1):
        for name, unit in units.items():
            value = seconds(unit)
            if turn:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


def _shown(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
