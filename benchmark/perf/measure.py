"""How things are timed here: in turn, after a warm-up, medians, beside a probe of the machine."""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmark.runs.environment import code_version, cores, cpu_model

Unit = Callable[..., Any]
REPEATS = 3
WIDTH = 160
FAILED = "failed: "
HEAD = "## "
INTRODUCTION = """# Speed

Measured by `make perf` on CPUs; `make perf-gpu` adds sections for a GPU. Both measure everything anew. A section names
its machine, its code version, and the rate of a matrix product before and after it (on a quiet machine they are equal).

"""


@dataclass(frozen=True)
class Section:
    """A table of measurements.

    Args:
        title: what was measured.
        headers: names of the columns.
        rows: cells; floats are shown with three significant digits.
        note: what one must know to read it.
        probe: GFLOP/s of ``probe`` before and after.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str
    probe: tuple[float, float]

    def text(self, markdown: bool = False) -> str:
        """The table with its note and the probe, as plain text or Markdown."""
        cells = [[_shown(cell) for cell in row] for row in self.rows]
        table = aligned([list(self.headers), *cells])
        speed = "probe {:.0f} -> {:.0f} GFLOP/s".format(*self.probe)
        title = f"{HEAD}{self.title}" if markdown else self.title
        return f"{title}\n\n{table}\n\n{self.note} ({speed}; {machine()})\n"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown whose columns stand below each other; the first row has their names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def machine() -> str:
    """What is measured, and on what."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{cpu_model()}, {cores()} cores, {gpu}, torch {torch.__version__}, code {code_version()}"


def merged(page: str, sections: Sequence[Section]) -> str:
    """``page`` with these sections in the place of those of the same title, new ones at its end; the others stay."""
    parts = {part.partition("\n")[0]: part for part in re.split(f"(?m)^{HEAD}", page)[1:]}
    for section in sections:
        parts[section.title] = section.text(markdown=True).removeprefix(HEAD)
    return HEAD.join([INTRODUCTION, *(part.strip("\n") + "\n\n" for part in parts.values())]).strip("\n") + "\n"


def probe() -> float:
    """GFLOP/s of a 1536 x 1536 matrix product with the present number of threads: how quiet the machine is."""
    a = torch.randn(1536, 1536)
    a @ a
    start = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * 1536**3 / (time.perf_counter() - start) / 1e9


def attempt(work: Callable[[], Any]) -> Any:
    """What ``work`` returns; if it fails, ``FAILED`` and the error, for a cell."""
    try:
        return work()
    except Exception as error:
        return f"{FAILED}{error_line(error)}"


def error_line(error: BaseException) -> str:
    """Type and first line of an error, cut where a table would become too wide."""
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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shown(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
