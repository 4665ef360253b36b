"""Charts of the pages, drawn as SVG by matplotlib and coloured by the page's style sheet."""

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
from numpy.typing import NDArray

from benchmark.report.curves import Curve
from benchmark.report.describe import heat_map
from benchmark.report.plots import STYLES, draw_curve

SERIES = 10  # number of colours; further curves get another line style
WRITTEN = 12  # maximum number of classes for numbers in a confusion matrix
NAME_WIDTH = 20  # characters of a row's name per line beside its interval
# Placeholder colours for variables of the style sheet, so that dark and light pages share one picture.
INK, GRID, SOFT = "#0a0c00", "#0a0c01", "#0a0c02"
COLOURS = [f"#0a0b{number:02x}" for number in range(SERIES)]
FILLS = {"told apart": None, "not told apart": "none", "bound": SOFT}  # fill of points, by the row's result
VARIABLES = {INK: "currentColor", GRID: "var(--line)", SOFT: "var(--soft)"} | {
    c: f"var(--series-{n})" for n, c in enumerate(COLOURS)
}
UNITS: dict[str, list[tuple[float, str]]] = {
    "round": [(1, "round")],
    "bytes": [(1e12, "TB sent, up and down"), (1e9, "GB sent, up and down"), (1e6, "MB sent, up and down")],
    "seconds": [(3600, "hours"), (60, "minutes"), (1, "seconds")],
}
SETTINGS: Any = {
    "svg.fonttype": "none",  # keep text as text, in the font of the page
    "svg.hashsalt": "fssl-bench",  # makes output deterministic
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
    """A picture and its title."""

    title: str
    svg: Markup


class Charts:
    """Draws the charts of one page, with unique ids."""

    def __init__(self) -> None:
        self._prefixes = (f"chart-{number}" for number in count())

    def curves(self, curves: Mapping[str, Curve], column: str, axis: str, title: str) -> Chart | None:
        """Draw curves of a column against an axis of ``curves.AXES``; ``None`` if no curve has both.

        Curve n has the colour and line style of ``swatch(n)``.
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

    def differences(self, lines: Sequence[tuple[str, float, float | None, str]], title: str, unit: str) -> Chart:
        """Draw differences with their intervals, one below the other, and a line at zero.

        Points look as in the leaderboard's figure (``report.differences``): filled if the row differs significantly
        from the reference, hollow if not, grey for a bound, which is not tested.

        Args:
            lines: name, difference, half-width of the interval (or ``None``) and a key of ``FILLS``, from the top.
            title: title, which names the reference.
            unit: unit of the differences, for the axis.
        """
        with rc_context(SETTINGS):
            names = [fill(name, NAME_WIDTH) for name, *_ in lines]
            deep = max(name.count("\n") for name in names)
            height = 0.5 + (0.24 + 0.13 * deep) * len(lines)
            figure = Figure(figsize=(4.2, height))
            panel = figure.add_axes((0.33, 0.42 / height, 0.64, 1 - 0.5 / height))
            y = np.arange(len(lines))[::-1]
            style: Any = {"fmt": "o", "markersize": 4.5, "linewidth": 1.3}
            for place, (_, mean, half, state) in zip(y, lines, strict=True):
                colour = SOFT if state == "bound" else COLOURS[0]
                panel.errorbar(mean, place, xerr=half, color=colour, markerfacecolor=FILLS[state], **style)
            panel.set_yticks(y, names)
            panel.set_ylim(-0.6, len(lines) - 0.4)
            panel.grid(axis="x", color=GRID, linewidth=0.6)
            panel.set_axisbelow(True)
            panel.axvline(0, color=INK, linewidth=0.8)
            panel.set_xlabel(unit)
            told = "; ".join(f"{name} {mean:+.2f}, {state}" for name, mean, _, state in lines)
            return Chart(title, self._svg(figure, f"{title}: {told}."))

    def confusion(self, matrix: NDArray[np.int64], title: str) -> Chart:
        """Draw a confusion matrix with rows normalised by class, and the accuracy per class beside it.

        Args:
            matrix: images by true class (rows) and predicted class, [C, C].
            title: title of the chart.
        """
        classes = len(matrix)
        shares = 100 * matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        size = float(np.clip(0.3 * classes, 2.4, 6.0))
        texts: Any = {key: SETTINGS[key] for key in ("svg.fonttype", "svg.hashsalt", "text.parse_math", "font.size")}
        with rc_context(texts):
            figure = Figure(figsize=(size + 2.4, size + 0.7), layout="constrained")
            heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=[size, 1.4])
            heat.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=100, interpolation="none")
            if classes <= WRITTEN:
                for (row, column), share in np.ndenumerate(shares):
                    if matrix[row, column]:
                        ink = "white" if share > 55 else "#1d2129"
                        heat.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=7, color=ink)
            step = max(1, classes // 10)
            heat.set(xlabel="predicted class", ylabel="true class")
            heat.set_xticks(range(0, classes, step))
            heat.set_yticks(range(0, classes, step))
            bars.barh(range(classes), shares.diagonal(), height=0.8, color="#2b6cb0")
            bars.set(xlabel="accuracy (%)", xlim=(0, 100))
            bars.spines[["top", "right", "left"]].set_visible(False)
            bars.tick_params(axis="y", length=0, labelleft=False)
            worst = int(shares.diagonal().argmin())
            about = f"{title}: class {worst} has the lowest accuracy, {shares[worst, worst]:.1f} percent."
            return Chart(title, self._svg(figure, about))

    def _svg(self, figure: Figure, about: str) -> Markup:
        return svg(figure, about, next(self._prefixes))


@cache  # the runs of a table share a partition
def partition(names: tuple[str, ...], labelled: tuple[str, ...], unlabelled: tuple[str, ...], title: str) -> Chart:
    """Draw a heat map of images per client and class (at most one per page, since its ids are fixed).

    Args:
        names: names of the clients.
        labelled: their images with labels, by class: a line of numbers per client.
        unlabelled: their images without labels.
        title: title of the chart.
    """
    with_labels, without = (np.array([row.split() for row in rows], dtype=np.int64) for rows in (labelled, unlabelled))
    classes = [str(number) for number in range(with_labels.shape[1])]
    texts: Any = {key: SETTINGS[key] for key in ("svg.fonttype", "svg.hashsalt", "text.parse_math")}
    with rc_context(texts):
        return Chart(title, svg(heat_map(names, with_labels, without, classes, ""), title, "partition"))


def svg(figure: Figure, about: str, prefix: str) -> Markup:
    """Convert a figure to an SVG element for a page.

    Args:
        figure: the figure.
        about: description for accessibility.
        prefix: prefix of its ids.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(text.getvalue())
    for child in list(root):
        if child.tag == f"{{{SVG}}}metadata" or child.find(f"{{{SVG}}}style") is not None:
            root.remove(child)  # the style would apply to the whole page
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            element.set(key, _attribute(key, value, prefix))
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": about}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def swatch(number: int) -> Markup:
    """Return a short line in the colour and style of curve ``number``."""
    dashes = {"-": "", "--": "5 3", ":": "1.5 2.5", "-.": "6 2.5 1.5 2.5"}[STYLES[number // SERIES % len(STYLES)]]
    return Markup(
        '<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true"><line x1="1" y1="4" x2="23" y2="4" '
        'stroke-width="2.5" stroke="var(--series-{})" stroke-dasharray="{}"/></svg>'
    ).format(number % SERIES, dashes)


def _rows_with(curve: Curve, column: str, axis: str) -> Curve:
    """Keep the curve's rows that have a number in the column, and the axis."""
    kept = [n for n, row in enumerate(curve.rows) if isinstance(row.get(column), int | float) and axis in row]
    return Curve([curve.rows[n] for n in kept], [curve.spread[n] for n in kept if curve.spread], curve.seeds)


def _attribute(key: str, value: str, prefix: str) -> str:
    """Rewrite an attribute: prefixed ids, two decimals, and style-sheet variables for colours."""
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
