"""Learning curves and effects: what is drawn, how runs are called, and what is refused."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.image import imread

from benchmark.cli import main
from benchmark.config import Run, RunConfig, Runtime
from benchmark.registry import ClassSpec
from benchmark.report import plots
from benchmark.report.settings import Setting
from benchmark.suites.plan import Table
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError
from run_folders import completed

ROWS = {
    "one": [{"round": r, "acc": 10.0 * r, "timing": {"seconds": 1.0}} for r in range(4)],
    "two": [{"round": r, "acc": 5.0 * r, "share": [0.1, 0.2]} for r in range(4)],
}


def curve(*seeds: list[dict[str, Any]]) -> pd.DataFrame:
    """A curve of rows by seed."""
    frames = [pd.json_normalize(rows).assign(seed=number) for number, rows in enumerate(seeds)]
    return pd.concat(frames, ignore_index=True)


def draw(runs: dict[str, Any], columns: list[str], path: Path) -> Path:
    """Curves of single runs, given as rows."""
    return plots.learning_curves({name: curve(rows) for name, rows in runs.items()}, columns, path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are written; a warning while they are is an error."""
    figures, save = [], plots.Figure.savefig

    def keep(figure: Any, path: Path, **options: Any) -> None:
        figures.append(figure)
        with warnings.catch_warnings(action="error"):
            save(figure, path, **options)

    monkeypatch.setattr(plots.Figure, "savefig", keep)
    return figures


def texts(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_curves_hold_the_rows(tmp_path: Path, drawn: list[Any]) -> None:
    """One line per run, rounds from 0 as in the records; the file is a picture."""
    path = draw(ROWS, ["acc"], tmp_path / "curves.png")
    assert imread(path).std() > 0
    (panel,) = drawn[0].axes
    assert [line.get_label() for line in panel.lines] == ["one", "two"] == texts(drawn[0].legends[0])
    assert panel.lines[0].get_xydata().tolist() == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert panel.get_xlabel() == "round" and panel.get_ylabel() == "acc (%)" and not panel.collections
    draw({r"$\frac{ $": ROWS["one"]}, ["acc"], tmp_path / "dollars.png")
    assert not drawn[1].legends[0].get_texts()[0].get_parse_math()


def test_unknown_columns(tmp_path: Path) -> None:
    """The error lists the columns that hold numbers."""
    with pytest.raises(ConfigError, match=r"'share'.*acc, timing\.seconds"):
        draw(ROWS, ["acc", "share"], tmp_path / "curves.png")
    assert not list(tmp_path.glob("*.png"))


def test_seeds_are_averaged_over_the_rounds_that_all_have(tmp_path: Path, drawn: list[Any]) -> None:
    """What one seed lacks is no mean of the others but a gap; the band is a standard deviation."""
    one = [{"round": 0, "acc": 10.0, "loss": None}, {"round": 1, "acc": 20.0, "loss": 1.0}, {"round": 2, "acc": 30.0}]
    two = [{"round": 0, "acc": 14.0, "loss": 1.0}, {"round": 1, "acc": 20.0, "loss": 1.0}]
    plots.learning_curves({"a": curve(one, two)}, ["acc", "loss"], tmp_path / "seeds.png")
    acc, loss = drawn[0].axes
    assert acc.lines[0].get_xydata().tolist() == [[0, 12], [1, 20]]
    assert np.isnan(loss.lines[0].get_ydata()).tolist() == [True, False]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of two complete runs that differ in an option."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        config = RunConfig(ClassSpec("fixmatch", {"dpl": name == "b"}), ClassSpec("digits"), rounds=1)
        completed(Run.of(config), 1.0).rename(name)
    return ["a", "b"]


def test_plot_labels(runs: list[str], drawn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Given with ``--labels``, or made from the records; whatever backend the environment names."""
    monkeypatch.setenv("MPLBACKEND", "odd")  # with which nobody can import matplotlib
    assert main(["plot", *runs]) == 0
    assert main(["plot", *runs, "--labels", "plain, with DPL", "--out", "labelled.SVG"]) == 0
    assert texts(drawn[0].legends[0]) == ["a", "b"]
    assert texts(drawn[1].legends[0]) == ["plain", "with DPL"]
    assert Path("curves.png").is_file() and Path("labelled.SVG").is_file()
    assert os.environ["MPLBACKEND"] == "agg"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "b", "--labels", "one"], "--labels: 1 for 2 curves; give one per curve"),
        (["a", "a"], "two curves are called 'a'; give them different names with --labels"),
        (["--row", "1/SVHN/rscfed"], "plot: name folders of runs, or rows of a suite"),
        (["a", "--out", "q"], "--out q: the suffix gives the format; use one of .png"),
        (["a", "--out", "/nonexistent/q.png"], "/nonexistent/q.png: No such file"),
    ],
)  # fmt: skip
def test_bad_plots_are_one_line(runs: list[str], capsys: Any, arguments: list[str], message: str) -> None:
    """With what to do about it."""
    assert main(["plot", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and message in err and err.count("\n") == 1 and "start over" not in err
    assert out == "" and not Path("curves.png").exists()


def test_rows_of_a_suite(here: Path, drawn: list[Any]) -> None:
    """Seeds are averaged, with a band; the legend, and so ``--labels``, is in the order asked for."""
    suite = load("toy.yaml")
    plan = suite.plan("quick", runtime=Runtime(results_dir=str(here)))
    for seed in (1, 2):
        rows = ({"acc": 10.0 * seed * number, "bytes_up": number, "bytes_down": number} for number in range(2))
        completed(plan.run(suite.rows[0], seed), *rows)
    curves = plots.read_suite_rows(suite, ["2/A/low", "1/A/*"], "quick", str(here))
    assert list(curves) == ["2/A/low", "1/A/low"], "one run of both rows, and none of 1/A/mid"
    plots.learning_curves(curves, ["acc"], here / "curves.png", "bytes")
    (panel,) = drawn[0].axes
    assert panel.lines[0].get_xydata().tolist() == [[0, 0], [2, 15]] and panel.get_xlabel() == "bytes"
    assert panel.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(15 + 50**0.5)
    assert list(plots.read_suite_rows(suite, ["1/A/low"], "quick", str(here))) == ["low"]
    with pytest.raises(ConfigError, match=r"no complete run of 1/A/mid .*`table --paper toy.yaml --scale quick`"):
        plots.read_suite_rows(suite, ["1/A/low", "1/A/mid"], "quick", str(here))


FILLS = {to_rgba("white"): "hollow", to_rgba(plots.GRID): "grey"}
EFFECTS = {  # difference, half-width, failed runs
    "base": (np.nan, np.nan, 0),
    "good": (5.0, 1.0, 0),
    "bad": (-2.0, 3.0, 0),
    "$\\frac{$": (-4.0, 1.0, 0),
    "all labels": (9.0, 2.0, 0),
}


def setting(effects: Any = EFFECTS, title: str = "Labels somewhere") -> Setting:
    """A board's setting; bound and control have an interval of their own alone."""
    others = {"bounds": ["all labels"], "controls": {"good": "$\\frac{$"}}
    table = Table(number=title, title=title, metrics=["acc"], rows=(), reference="base", **others)
    lines = pd.DataFrame(effects, index=["difference", "difference_ci95", "failed"]).T.assign(pairs=3, converged=True)
    lines["simultaneous_ci95"] = lines["difference_ci95"].mask(lines.index.isin(table.untested))
    return Setting(table, "A", pd.DataFrame(columns=lines.index), lines, "", {"admitted": True})


def test_points_stand_at_their_rows_and_clear_ones_are_filled() -> None:
    """Bounds and controls are grey. The reference has no line. Bars are the intervals.

    Names are shown as they are: a dollar sign begins no formula.
    """
    (axes,) = plots.draw_differences([setting()]).axes
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["$\\frac{$", "bad", "good", "all labels (bound)"]
    (drawn,) = (one for one in axes.collections if len(one.get_offsets()) == len(names))
    assert drawn.get_offsets().tolist() == [[-4, 0], [-2, 1], [5, 2], [9, 3]]
    fills = [FILLS.get(tuple(colour), "filled") for colour in drawn.get_facecolors()]
    assert fills == ["grey", "hollow", "filled", "grey"]
    bars = [line for one in axes.collections if hasattr(one, "get_segments") for line in one.get_segments()]
    assert {tuple(line[:, 0]) for line in bars} == {(4, 6), (-5, 1), (7, 11), (-5, -3)}
    (axes,) = plots.draw_differences([setting(EFFECTS | {"good": (1.0, 2.0, 1)})]).axes
    assert axes.get_yticklabels()[0].get_text() == "good", "a row with a failed run is the last"


def test_a_panel_per_setting_on_one_scale() -> None:
    found = [setting(), setting(title="$^")]
    above, below = plots.draw_differences(found).axes
    assert above.get_xlim() == below.get_xlim()
    assert below.get_title(loc="left") == "$^, A: points above base"
    assert plots.svg_text(above.figure) == plots.svg_text(plots.draw_differences(found))
