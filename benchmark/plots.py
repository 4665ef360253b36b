"""Learning curves from the rows of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmark.errors import ConfigError
from benchmark.records import Row

PERCENT = ("acc", "auc", "precision", "recall")


def learning_curves(runs: Mapping[str, Sequence[Row]], columns: Sequence[str], path: str | Path) -> Path:
    """Draw columns of the records against the round, one panel per column, and write the picture.

    Args:
        runs: rows of ``metrics.jsonl`` (``records.read_rows``) by the name that the legend shows.
        columns: what to draw, e.g. ``acc`` or ``pseudo/selected``. A list per row (one value per class) gives one thin
            line per entry, in colours of their own where a single run is drawn. Rows without a column leave a gap; a
            run without it does not appear in the panel.
        path: file to write; its suffix says the format (``.png``, ``.svg``, ``.pdf``).

    Raises:
        ConfigError: no run has a column (the known ones are listed), or nothing to draw.
    """
    known = sorted({key for rows in runs.values() for row in rows for key in row} - {"round", "timing"})
    for column in columns:
        if column not in known:
            raise ConfigError(f"plot: no run has a column {column!r}; there are {', '.join(known) or 'none'}")
    if not columns:
        raise ConfigError("plot: no column to draw; name one or more, e.g. acc")
    figure = Figure(figsize=(6.0, 3.2 * len(columns)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(columns), squeeze=False, sharex=True)[:, 0]
    for panel, column in zip(panels, columns, strict=True):
        for number, (name, rows) in enumerate(runs.items()):
            points = [(row["round"] + 1, row[column]) for row in rows if row.get(column) is not None]
            _curves(panel, points, name, f"C{number}", by_class=len(runs) == 1)
        panel.set_ylabel(f"{column} (%)" if column in PERCENT else column)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("round")
    panels[0].legend(fontsize="small")
    figure.savefig(path)
    return Path(path)


def _curves(panel: Any, points: Sequence[tuple[int, Any]], name: str, colour: str, by_class: bool) -> None:
    if not points:
        return
    rounds, values = zip(*points, strict=True)
    many = isinstance(values[0], list)
    shown = np.array(values, dtype=float)  # a class without a value in a round leaves a gap
    lines = panel.plot(rounds, shown, linewidth=0.6 if many else 1.4)
    for number, line in enumerate(lines):
        if many and by_class:
            line.set(color=colormaps["tab20"](number % 20), label=f"class {number}")
        else:
            line.set_color(colour)
    if not (many and by_class):
        lines[0].set_label(name)
    elif len(lines) <= 20:
        panel.legend(fontsize="xx-small", ncols=5)
