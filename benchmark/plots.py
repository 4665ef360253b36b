"""Learning curves from the rows of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmark.errors import ConfigError
from benchmark.records import Row


def learning_curves(runs: Mapping[str, Sequence[Row]], columns: Sequence[str], path: str | Path) -> Path:
    """Draw columns of the records against the round, one panel per column, and write the picture.

    Args:
        runs: rows of ``metrics.jsonl`` (``records.read_rows``) by the name that the legend shows.
        columns: what to draw, e.g. ``acc`` or ``pseudo/selected``. A list per row (one value per class) gives one thin
            line per entry. Rows without a column leave a gap; a run without it does not appear in the panel.
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
            _curves(panel, points, name, f"C{number}")
        panel.set_ylabel(column)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("round")
    panels[0].legend(fontsize="small")
    figure.savefig(path)
    return Path(path)


def _curves(panel: Any, points: Sequence[tuple[int, Any]], name: str, colour: str) -> None:
    if not points:
        return
    rounds, values = zip(*points, strict=True)
    many = isinstance(values[0], list)
    lines = panel.plot(rounds, values, color=colour, linewidth=0.6 if many else 1.4)
    lines[0].set_label(name)
