"""The picture of a leaderboard: its points lie where the lines say, and are filled where rows are told apart."""

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgba

from benchmark.report.differences import GRID, Panel, draw_differences
from benchmark.report.plots import svg_text

FILLS = {to_rgba("white"): "hollow", to_rgba(GRID): "grey"}
COLUMNS = ["dataset", "method", "difference", "half_width", "bound", "clear", "failed"]
ROWS = [
    ("A", "base", np.nan, np.nan, False, False, 0),
    ("A", "good", 5.0, 1.0, False, True, 0),
    ("A", "bad", -2.0, 3.0, False, False, 0),
    ("A", "all labels", 9.0, 2.0, True, False, 0),
    ("B", "base", np.nan, np.nan, False, False, 0),
    ("B", "good", 1.0, 2.0, False, False, 0),
    ("B", "all labels", 7.0, 1.0, True, False, 0),
]


def panel(rows=ROWS, title="Labels somewhere"):
    return Panel(title, "base", pd.DataFrame(rows, columns=COLUMNS))


def points(axes):
    """By data set, from the top of the legend: name of the row, difference, and how its point is filled."""
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    return [
        {
            names[round(y)]: (x, FILLS.get(tuple(colour), "filled"))
            for (x, y), colour in zip(drawn.get_offsets().data, drawn.get_facecolors(), strict=True)
            if np.isfinite(x)
        }
        for drawn in axes.collections
        if len(drawn.get_offsets()) == len(names)
    ]


def test_points_stand_at_their_rows_and_clear_ones_are_filled():
    """Bounds are grey. The reference has none; a row that a data set lacks has none there."""
    (axes,) = draw_differences([panel()]).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["bad", "good", "all labels (bound)"]
    first, second = points(axes)
    assert first == {"bad": (-2.0, "hollow"), "good": (5.0, "filled"), "all labels (bound)": (9.0, "grey")}
    assert second == {"good": (1.0, "hollow"), "all labels (bound)": (7.0, "grey")}


def test_a_row_with_a_failed_run_stands_below_all_without_one():
    """Whatever its other seeds say."""
    rows = [(*row[:-1], int(row[:2] == ("B", "good"))) for row in ROWS]
    (axes,) = draw_differences([panel(rows)]).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["good", "bad", "all labels (bound)"]


def test_intervals_reach_as_far_as_the_half_width():
    (axes,) = draw_differences([panel()]).axes
    bars = [line for drawn in axes.collections if hasattr(drawn, "get_segments") for line in drawn.get_segments()]
    reach = {tuple(line[:, 0]) for line in bars if len(line) and np.isfinite(line).all()}
    assert reach == {(4, 6), (-5, 1), (7, 11), (-1, 3), (6, 8)}


def test_a_panel_per_setting_with_one_scale_and_one_colour_per_data_set():
    only = panel([row for row in ROWS if row[0] == "B"], "Labels elsewhere")
    above, below = draw_differences([panel(), only]).axes
    assert above.get_xlim() == below.get_xlim()
    assert below.get_title(loc="left") == "Labels elsewhere: points above base"
    edges = [axes.collections[-1].get_edgecolors()[0] for axes in (above, below)]
    assert tuple(edges[0]) == tuple(edges[1]) == to_rgba("C1")


def test_names_are_shown_as_they_are():
    """A dollar sign begins no formula."""
    lines = [(dataset, method.replace("good", "$\\frac{$"), *rest) for dataset, method, *rest in ROWS]
    drawn = draw_differences([panel(lines, "$^")])
    assert "$\\frac{$" in [tick.get_text() for tick in drawn.axes[0].get_yticklabels()]
    assert svg_text(drawn).count("<svg") == 1


def test_the_same_lines_give_the_same_text():
    text = svg_text(draw_differences([panel()]))
    assert text == svg_text(draw_differences([panel()]))
    assert text.startswith("<?xml") and text.count("<svg") == 1
