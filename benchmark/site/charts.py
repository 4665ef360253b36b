"""Charts of the pages: matplotlib draws them as SVG, the page's style sheet colours them."""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from textwrap import fill
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmark.report.curves import Curve
from benchmark.report.describe import heat_map
from benchmark.report.plots import STYLES, draw_curve

SERIES = 10  # colours; further curves get another line style
NAME_WIDTH = 20  # letters of a row's name that stand in one line beside its interval
# Colours that stand in the SVG for variables of the style sheet, so that dark and light pages share one picture.
INK, GRID = "#0a0c00", "#0a0c01"
COLOURS = [f"#0a0b{number:02x}" for number in range(SERIES)]
VARIABLES = {INK: "currentColor", GRID: "var(--line)"} | {c: f"var(--series-{n})" for n, c in enumerate(COLOURS)}
UNITS: dict[str, list[tuple[float, str]]] = {
    "round": [(1, "round")],
    "bytes": [(1e12, "TB sent, up and down"), (1e9, "GB sent, up and down"), (1e6, "MB sent, up and down")],
    "seconds": [(3600, "hours"), (60, "minutes"), (1, "seconds")],
}
SETTINGS: Any = {
    "svg.fonttype": "none",  # texts stay texts, in the font of the page
    "svg.hashsalt": "fssl-bench",  # the same picture gives the same bytes
    "text.parse_math": False,
    "font.size": 8,
    "path.simplify_threshold": 0.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
SVG, LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", LINK)


@dataclass(frozen=True)
class Chart:
    """A picture and what stands above it."""

    title: str
    svg: Markup


class Charts:
    """Draws the charts of one page, whose ids are told apart."""

    def __init__(self) -> None:
        self._prefixes = (f"chart-{number}" for number in count())

    def curves(self, curves: Mapping[str, Curve], column: str, axis: str, title: str) -> Chart | None:
        """Curves of a column against an axis of ``curves.AXES``; ``None`` where no curve has both.

        The curve at position n has the colour and the line style of ``swatch(n)``.
        """
        shown = {
            number: (name, scaled)
            for number, (name, curve) in enumerate(curves.items())
            if (scaled := _rows_with(curve, column, axis)).rows
        }
        if not shown:
            return None
        reach = max(row[axis] for _, curve in shown.values() for row in curve.rows)
        unit, label = next((u for u in UNITS[axis] if reach >= u[0]), UNITS[axis][-1])
        with rc_context(SETTINGS):
            figure = Figure(figsize=(4.2, 2.6))
            panel = figure.add_axes((0.12, 0.17, 0.85, 0.79))
            for number, (_, curve) in shown.items():
                rows = [{**row, axis: row[axis] / unit} for row in curve.rows]
                style = {"color": COLOURS[number % SERIES], "linestyle": STYLES[number // SERIES % len(STYLES)]}
                draw_curve(panel, Curve(rows, curve.spread, curve.seeds), column, axis, linewidth=1.1, **style)
            panel.grid(color=GRID, linewidth=0.6)
            panel.set_axisbelow(True)
            panel.set_xlabel(label)
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=axis == "round"))
            panel.yaxis.set_major_locator(MaxNLocator(5))
            ends = "; ".join(f"{name}: {curve.rows[-1][column]:.4g} at the end" for name, curve in shown.values())
            return Chart(title, self._svg(figure, f"{title} over {label}. {ends}."))

    def intervals(self, lines: Sequence[tuple[str, float, float | None]], title: str, unit: str) -> Chart:
        """Means with their intervals, one below the other; a line marks zero where it is in sight.

        A point without an interval is hollow.

        Args:
            lines: name, mean and half-width of the interval (or ``None``), from the top.
            title: what the means are of.
            unit: of the means, for the axis.
        """
        with rc_context(SETTINGS):
            names = [fill(name, NAME_WIDTH) for name, _, _ in lines]
            deep = max(name.count("\n") for name in names)
            height = 0.5 + (0.24 + 0.13 * deep) * len(lines)
            figure = Figure(figsize=(4.2, height))
            panel = figure.add_axes((0.33, 0.42 / height, 0.64, 1 - 0.5 / height))
            y = np.arange(len(lines))[::-1]
            style: Any = {"fmt": "o", "color": COLOURS[0], "markersize": 4, "capsize": 2, "linewidth": 1.3}
            for place, (_, mean, half) in zip(y, lines, strict=True):
                panel.errorbar(mean, place, xerr=half, markerfacecolor="none" if half is None else None, **style)
            panel.set_yticks(y, names)
            panel.set_ylim(-0.6, len(lines) - 0.4)
            panel.grid(axis="x", color=GRID, linewidth=0.6)
            panel.set_axisbelow(True)
            low, high = panel.get_xlim()
            if low < 0 < high:
                panel.axvline(0, color=INK, linewidth=0.8)
            hollow = "; hollow: one seed" if any(half is None for _, _, half in lines) else ""
            panel.set_xlabel(f"{unit}, mean and 95 % interval{hollow}")
            return Chart(title, self._svg(figure, f"{title}: means with 95 % intervals{hollow}, as in the table."))

    def _svg(self, figure: Figure, about: str) -> Markup:
        return svg(figure, about, next(self._prefixes))


@cache  # the runs of a table meet the same partition
def partition(names: tuple[str, ...], labelled: tuple[str, ...], unlabelled: tuple[str, ...], title: str) -> Chart:
    """Heat map of images per client and class, for a page that has no other.

    Args:
        names: of the clients.
        labelled: their images with labels, by class: a line of numbers per client.
        unlabelled: those without.
        title: of the chart.
    """
    with_labels, without = (np.array([row.split() for row in rows], dtype=np.int64) for rows in (labelled, unlabelled))
    classes = [str(number) for number in range(with_labels.shape[1])]
    texts: Any = {key: SETTINGS[key] for key in ("svg.fonttype", "svg.hashsalt", "text.parse_math")}
    with rc_context(texts):
        return Chart(title, svg(heat_map(names, with_labels, without, classes, ""), title, "partition"))


def svg(figure: Figure, about: str, prefix: str) -> Markup:
    """The figure as an SVG element to stand in a page.

    Args:
        figure: what was drawn.
        about: its description for people who cannot see it.
        prefix: what its ids begin with.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(text.getvalue())
    for child in list(root):
        if child.tag == f"{{{SVG}}}metadata" or child.find(f"{{{SVG}}}style") is not None:
            root.remove(child)  # the style would hold for the whole page
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            element.set(key, _attribute(key, value, prefix))
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": about}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def swatch(number: int) -> Markup:
    """A short line in the colour and style of the curve at this position."""
    dashes = {"-": "", "--": "5 3", ":": "1.5 2.5", "-.": "6 2.5 1.5 2.5"}[STYLES[number // SERIES % len(STYLES)]]
    return Markup(
        '<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true"><line x1="1" y1="4" x2="23" y2="4" '
        'stroke-width="2.5" stroke="var(--series-{})" stroke-dasharray="{}"/></svg>'
    ).format(number % SERIES, dashes)


def _rows_with(curve: Curve, column: str, axis: str) -> Curve:
    """The curve's rows that have a number in the column, and the axis."""
    kept = [n for n, row in enumerate(curve.rows) if isinstance(row.get(column), int | float) and axis in row]
    return Curve([curve.rows[n] for n in kept], [curve.spread[n] for n in kept if curve.spread], curve.seeds)


def _attribute(key: str, value: str, prefix: str) -> str:
    """An attribute with ids of its own page, two decimals, and the variables of the style sheet for colours."""
    if key == "id":
        return f"{prefix}-{value}"
    if key == f"{{{LINK}}}href":
        return f"#{prefix}-{value[1:]}" if value.startswith("#") else value
    if key == "clip-path":
        return value.replace("url(#", f"url(#{prefix}-")
    if key == "style":
        for colour, variable in VARIABLES.items():
            value = value.replace(colour, variable)
        return value
    return re.sub(r"(\.\d\d)\d+", r"\1", value)
