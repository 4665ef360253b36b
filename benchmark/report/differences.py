"""Effect plot of the leaderboard: every row's difference to its reference, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmark.report.settings import Setting, told_apart
from benchmark.suites.suite import Suite

INK, GRID = "#2b2d33", "#d9d9d6"
SPREAD = 0.22  # distance between the data sets of a row, in rows


@dataclass(frozen=True)
class Panel:
    """The rows of a table, on all its data sets.

    Args:
        title: title of the table.
        reference: label of the reference row.
        lines: one line per row and data set: ``dataset``, ``method``, ``difference`` and ``half_width`` of its interval
            (points), ``bound``, ``clear`` (whether the row may be called better or worse than the reference), and
            ``failed`` (number of failed runs).
    """

    title: str
    reference: str
    lines: pd.DataFrame


def panels(suite: Suite, found: Sequence[Setting]) -> list[Panel]:
    """A panel per table of the suite that has a setting among ``found``."""
    made = []
    for table in suite.tables:
        own = [one for one in found if one.table is table]
        if own:
            lines = pd.concat([_drawn(one) for one in own]).rename_axis("method").reset_index()
            made.append(Panel(table.title, own[0].reference, lines))
    return made


def _drawn(one: Setting) -> pd.DataFrame:
    """Lines with what decides, the simultaneous interval; a row that is not tested keeps that of its difference."""
    half = one.lines["simultaneous_ci95"].fillna(one.lines["difference_ci95"])
    clear = [told_apart(one, method) for method in one.lines.index]
    return one.lines.assign(dataset=one.dataset, half_width=half, clear=clear)


def draw_differences(panels: Sequence[Panel]) -> Figure:
    """Draw one panel below the other, a line per row, and a point with its interval per data set.

    Filled points are told apart from the reference, hollow ones are not, and grey ones are bounds, which are not
    tested. Rows are sorted by their mean difference over the data sets; those with failed runs come last.
    """
    datasets = list(dict.fromkeys(name for panel in panels for name in panel.lines["dataset"]))
    heights = [panel.lines["method"].nunique() + 1 for panel in panels]
    with rc_context({"text.parse_math": False}):  # names may have dollar signs
        figure = Figure(figsize=(7.5, 0.24 * sum(heights) + 0.45 * len(panels) + 0.6), layout="constrained")
        drawn = figure.subplots(len(panels), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axes, panel in zip(drawn, panels, strict=True):
            _draw_panel(axes, panel, datasets)
        entry = partial(Line2D, [], [], marker="o")
        points = [entry(color=f"C{number}", label=name) for number, name in enumerate(datasets)]
        hollow = entry(color=INK, markerfacecolor="white", label="not told apart")
        untested = entry(color=INK, markerfacecolor=GRID, label="bound, not tested")
        figure.legend(
            handles=[*points, hollow, untested], loc="outside lower center", ncols=4, fontsize="small", frameon=False
        )
    return figure


def _draw_panel(axes: Axes, panel: Panel, datasets: Sequence[str]) -> None:
    """Draw one panel; a data set has the same colour in all panels."""
    lines = panel.lines[panel.lines["method"] != panel.reference]
    rows = lines.groupby("method").agg({"failed": "sum", "difference": "mean"})
    order = rows.sort_values(["failed", "difference"], ascending=[False, True]).index
    bounds = set(lines.loc[lines["bound"].astype(bool), "method"])
    shown = [name for name in datasets if name in set(lines["dataset"])]
    for place, dataset in enumerate(shown):
        own = lines[lines["dataset"] == dataset].set_index("method").reindex(order)
        y = np.arange(len(order)) + SPREAD * ((len(shown) - 1) / 2 - place)
        colour = f"C{datasets.index(dataset)}"
        fill = [colour if clear else "white" for clear in own["clear"].eq(True)]
        fill = [GRID if method in bounds else own_fill for method, own_fill in zip(order, fill, strict=True)]
        axes.errorbar(own["difference"], y, xerr=own["half_width"], fmt="none", ecolor=colour, elinewidth=1.2)
        axes.scatter(own["difference"], y, s=22, color=fill, edgecolors=colour, linewidths=1.2, zorder=3)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(order)), [f"{name} (bound)" if name in bounds else name for name in order])
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_title(f"{panel.title}: points above {panel.reference}", fontsize="medium", loc="left")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize="small", labelbottom=True)
    axes.spines[["top", "right", "left"]].set_visible(False)
