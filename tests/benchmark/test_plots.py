"""Learning curves: what is drawn, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmark import plots
from benchmark.errors import ConfigError

ROWS = {
    "one": [{"round": r, "acc": 10.0 * r, "timing": {"seconds": 1.0}} for r in range(4)],
    "two": [{"round": r, "acc": 5.0 * r, **({"share": [0.1 * r, 0.2]} if r > 1 else {})} for r in range(4)],
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are written."""
    figures, save = [], plots.Figure.savefig

    def keep(figure: Any, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots.Figure, "savefig", keep)
    return figures


def test_curves_hold_the_rows(tmp_path: Path, drawn: list[Any]) -> None:
    """One line per run, one per entry of a list, rounds from 1; the file is a picture."""
    path = plots.learning_curves(ROWS, ["acc", "share"], tmp_path / "curves.png")
    assert imread(path).std() > 0
    accuracy, share = drawn[0].axes
    assert [line.get_label() for line in accuracy.lines] == ["one", "two"]
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 0], [2, 10], [3, 20], [4, 30]]
    assert [line.get_xydata().tolist() for line in share.lines] == [
        [[3, pytest.approx(0.2)], [4, pytest.approx(0.3)]],
        [[3, 0.2], [4, 0.2]],
    ]
    assert share.get_xlabel() == "round" and share.get_ylabel() == "share"


def test_unknown_columns(tmp_path: Path) -> None:
    """The error lists the columns there are."""
    with pytest.raises(ConfigError, match="no run has a column 'auc'; there are acc, share"):
        plots.learning_curves(ROWS, ["acc", "auc"], tmp_path / "curves.png")
    with pytest.raises(ConfigError, match="no column to draw"):
        plots.learning_curves(ROWS, [], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


def test_one_run_tells_classes_apart(tmp_path: Path, drawn: list[Any]) -> None:
    """Colours and labels per class; a class without a value leaves a gap."""
    rows = [{"round": r, "share": [0.1, None if r else 0.2]} for r in range(3)]
    plots.learning_curves({"run": rows}, ["share"], tmp_path / "classes.png")
    first, second = drawn[0].axes[0].lines
    assert (first.get_label(), second.get_label()) == ("class 0", "class 1")
    assert first.get_color() != second.get_color()
    assert second.get_ydata()[0] == 0.2 and (second.get_ydata()[1:] != second.get_ydata()[1:]).all()
