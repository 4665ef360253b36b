"""Learning curves: what is drawn, how runs are called, and what is refused."""

import re
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from benchmark.cli import main
from benchmark.config import Run, RunConfig, Runtime
from benchmark.registry import ClassSpec
from benchmark.report import plots
from benchmark.report.curves import averaged, with_cost
from benchmark.runs.folder import RunFolder
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from run_folders import FACTS

ROWS = {
    "one": [{"round": r, "acc": 10.0 * r, "timing": {"seconds": 1.0}} for r in range(4)],
    "two": [{"round": r, "acc": 5.0 * r, **({"share": [0.1 * r, 0.2]} if r > 1 else {})} for r in range(4)],
}


def draw(runs: dict[str, Any], columns: list[str], path: Path, axis: str = "round") -> Path:
    """Curves of single runs, given as rows."""
    return plots.learning_curves({name: averaged([with_cost(r)]) for name, r in runs.items()}, columns, path, axis)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are written; a warning while they are is an error."""
    figures, save = [], plots.Figure.savefig

    def keep(figure: Any, path: Path) -> None:
        figures.append(figure)
        with warnings.catch_warnings(action="error"):
            save(figure, path)

    monkeypatch.setattr(plots.Figure, "savefig", keep)
    return figures


def by_class(classes: int, rounds: int = 3) -> list[dict[str, Any]]:
    return [
        {"round": r, "acc": 1.0 * r, "share_by_class": [0.1 * r + k for k in range(classes)]} for r in range(rounds)
    ]


def texts(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def record(run_id: str, *, method: str = "fixmatch", dataset: str = "digits", seed: int = 0, **args: Any) -> Any:
    data = {"class_path": dataset, "init_args": {"beta": 0.3, "mean": [len(dataset)]}}
    config = {"method": {"class_path": method, "init_args": args}, "data": data, "seed": seed, "model_args": {"w": 8}}
    return {"run_id": run_id, "method": method, "dataset": dataset, "config": config}


def test_curves_hold_the_rows(tmp_path: Path, drawn: list[Any]) -> None:
    """One line per run, one per entry of a list, rounds from 0 as in the records; the file is a picture."""
    path = draw(ROWS, ["acc", "share"], tmp_path / "curves.png")
    assert imread(path).std() > 0
    accuracy, share = drawn[0].axes
    assert [line.get_label() for line in accuracy.lines] == ["one", "two"]
    assert accuracy.lines[0].get_xydata().tolist() == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert [line.get_xydata()[2:].tolist() for line in share.lines] == [
        [[2, pytest.approx(0.2)], [3, pytest.approx(0.3)]],
        [[2, 0.2], [3, 0.2]],
    ]
    assert share.get_xlabel() == "round" and share.get_ylabel() == "share" and share.get_title("left") == "two"


def test_unknown_columns(tmp_path: Path) -> None:
    """The error lists the columns there are."""
    with pytest.raises(ConfigError, match=r"'auc'.*acc, seconds, share"):
        draw(ROWS, ["acc", "auc"], tmp_path / "curves.png")
    with pytest.raises(ConfigError, match="no column to draw"):
        draw(ROWS, [], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


def test_a_run_without_the_axis_is_not_drawn(tmp_path: Path, drawn: list[Any]) -> None:
    """And a row without it leaves a gap."""
    rows = [{"round": 4, "acc": 1.0}, *({**row, "round": row["round"] + 5} for row in ROWS["one"])]
    draw({"some": rows, **ROWS}, ["acc"], tmp_path / "curves.png", "seconds")
    (panel,) = drawn[0].axes
    assert [line.get_label() for line in panel.lines] == ["some", "one"]
    assert np.isnan(panel.lines[0].get_xdata()).tolist() == [True] + [False] * 4
    with pytest.raises(ConfigError, match=r"--axis seconds: .*'share'"):
        draw(ROWS, ["share"], tmp_path / "curves.png", "seconds")


def test_dollar_signs_are_no_mathematics(tmp_path: Path, drawn: list[Any]) -> None:
    draw({r"$\frac{ $": ROWS["one"]}, ["acc"], tmp_path / "curves.png")
    (text,) = drawn[0].legends[0].get_texts()
    assert not text.get_parse_math()


def test_one_run_tells_classes_apart(tmp_path: Path, drawn: list[Any]) -> None:
    """Colours and labels per class; a class without a value leaves a gap."""
    rows = [{"round": r, "share_by_class": [0.1, None if r else 0.2]} for r in range(3)]
    draw({"run": rows}, ["share_by_class"], tmp_path / "classes.png")
    first, second = drawn[0].axes[0].lines
    assert (first.get_label(), second.get_label()) == ("class 0", "class 1")
    assert first.get_color() != second.get_color() and first.get_linewidth() > 1
    assert second.get_ydata()[0] == 0.2 and np.isnan(second.get_ydata()[1:]).all()


def test_rows_without_a_column_leave_a_gap(tmp_path: Path, drawn: list[Any]) -> None:
    """Also where the value is null; a point between two gaps is marked, as no line shows it."""
    rows = [{"round": r, "loss": 1.0, "parts": [1.0, 2.0]} for r in range(20)]
    rows[5], rows[9] = {"round": 5}, {"round": 9}
    rows[7]["loss"] = None
    draw({"run": rows}, ["loss", "parts"], tmp_path / "gap.png")
    loss, parts = drawn[0].axes
    assert np.flatnonzero(np.isnan(loss.lines[0].get_ydata())).tolist() == [5, 7, 9]
    assert loss.lines[0].get_markevery() == [6, 8] and loss.lines[0].get_marker() == "o"
    assert [np.flatnonzero(np.isnan(line.get_ydata())).tolist() for line in parts.lines] == [[5, 9]] * 2
    assert parts.lines[0].get_marker() == "None" and parts.lines[1].get_label() == "entry 1"


def test_classes_of_several_runs(tmp_path: Path, drawn: list[Any]) -> None:
    """A panel per run with one scale, the same colours in each, and one legend of classes."""
    draw({"a": by_class(10), "b": by_class(10)}, ["share_by_class"], tmp_path / "classes.png")
    (first, second), figure = drawn[0].axes, drawn[0]
    assert [panel.get_title("left") for panel in (first, second)] == ["a", "b"]
    assert texts(first.get_legend()) == [f"class {k}" for k in range(10)]
    assert second.get_legend() is None and not figure.legends
    colours = [[line.get_color() for line in panel.lines] for panel in (first, second)]
    assert colours[0] == colours[1] and len(set(colours[0])) == 10
    assert first.get_ylim() == second.get_ylim()


def test_many_classes_have_no_legend(tmp_path: Path, drawn: list[Any]) -> None:
    """Runs stay named, and the layout fits (``drawn`` refuses the warning)."""
    runs = {"a": by_class(100), "b": by_class(100)}
    draw(runs, ["share_by_class", "acc"], tmp_path / "classes.png")
    figure = drawn[0]
    assert all(panel.get_legend() is None for panel in figure.axes) and texts(figure.legends[0]) == ["a", "b"]
    assert [panel.get_title("left") for panel in figure.axes] == ["a", "b", ""]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 100
    draw({"c": by_class(20)}, ["share_by_class"], tmp_path / "twenty.png")
    assert len({line.get_color() for line in drawn[1].axes[0].lines}) == len(texts(drawn[1].axes[0].get_legend())) == 20


@pytest.mark.parametrize("rounds", [1, 2, 5, 30])
def test_few_rows_are_marked_and_rounds_are_whole(tmp_path: Path, drawn: list[Any], rounds: int) -> None:
    """One evaluated round shows as a point."""
    path = draw({"a": by_class(3, rounds)}, ["acc", "share_by_class"], tmp_path / "few.png")
    for panel in drawn[0].axes:
        low, high = panel.get_xlim()
        ticks = [tick for tick in panel.get_xticks() if low <= tick <= high]
        assert ticks and all(tick == round(tick) for tick in ticks)
        assert {line.get_marker() for line in panel.lines} == ({"o"} if rounds < 30 else {"None"})
    pixels = imread(path)[..., :3]
    assert (abs(pixels - np.array([31, 119, 180]) / 255) < 0.02).all(axis=-1).sum() > 20  # C0


def test_many_runs_look_different_and_the_legend_hides_nothing(tmp_path: Path, drawn: list[Any]) -> None:
    """Styles of lines cycle where colours repeat; the legend lies below the panel."""
    draw({f"a rather long name {k}": by_class(1) for k in range(25)}, ["acc"], tmp_path / "runs.png")
    figure, panel = drawn[0], drawn[0].axes[0]
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.lines}) == 25
    (legend,) = figure.legends
    assert len(texts(legend)) == 25 and panel.get_legend() is None
    assert legend.get_window_extent().y1 < panel.get_tightbbox().y0
    assert legend.get_window_extent().x0 > 0 and legend.get_window_extent().x1 < figure.bbox.x1
    assert panel.get_window_extent().height > 250


def test_svg_is_short_and_says_what_it_shows() -> None:
    """Lines keep their points, to two decimals; a description is a part of the file."""
    curves = {"one": averaged([[{"round": r, "acc": r / 7} for r in range(4)]])}
    text = plots.svg_text(plots.draw_learning_curves(curves, ["acc"]), "a & b")
    assert ElementTree.fromstring(text).findtext(".//{http://purl.org/dc/elements/1.1/}description") == "a & b"
    lines = re.findall(r' d="([^"]*)"', text)
    assert max(len(decimals) for line in lines for decimals in re.findall(r"\.(\d+)", line)) == 2
    assert any(len(re.findall("[ML]", line)) == 4 for line in lines)
    assert "scale(0.015625)" in text  # of letters: only lines are rounded


def test_default_labels() -> None:
    """The method, the data set where there are several, options that differ; ids where that is not enough."""
    labels = plots.default_labels
    assert labels([record("a", dpl=True)]) == ["fixmatch"]
    assert labels([record("a", dpl=True), record("b", method="feddb", dpl=False)]) == ["fixmatch", "feddb"]
    assert labels([record("a", dpl=True), record("b", dpl=False), record("c", method="feddb", t=1)]) == [
        "fixmatch (dpl=True)", "fixmatch (dpl=False)", "feddb"
    ]  # fmt: skip
    assert labels([record("a", seed=1), record("b", seed=2, new=3)]) == [
        "fixmatch (seed=1)",
        "fixmatch (seed=2)",
    ]
    assert labels([record("a"), record("b", dataset="cifar10")]) == ["fixmatch (digits)", "fixmatch (cifar10)"]
    assert labels([record("a"), record("b")]) == ["fixmatch a", "fixmatch b"]
    many = [record(str(i), a=i % 2, b=i % 2, c=i % 2, d=f"x{i}", seed=i) for i in range(4)]
    assert labels(many)[3] == "fixmatch (a=1, b=1, c=1, …) 3" and len(set(labels(many))) == 4


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of two complete runs that differ in an option."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        config = RunConfig(ClassSpec("fixmatch", {"dpl": name == "b"}), ClassSpec("digits"), rounds=1)
        folder = RunFolder(name)
        folder.open(Run.of(config), FACTS)
        folder.append({"round": 0, "acc": 1.0})
        folder.finish()
    return ["a", "b"]


def test_plot_labels(runs: list[str], drawn: list[Any]) -> None:
    """Given with ``--labels``, or made from the records."""
    assert main(["plot", *runs]) == 0
    assert main(["plot", *runs, "--labels", "plain, with DPL", "--out", "labelled.SVG"]) == 0
    assert texts(drawn[0].legends[0]) == ["fixmatch (dpl=False)", "fixmatch (dpl=True)"]
    assert texts(drawn[1].legends[0]) == ["plain", "with DPL"]
    assert Path("curves.png").is_file() and Path("labelled.SVG").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "b", "--labels", "one"], "--labels: 1 for 2 curves; give one per curve"),
        (["a", "b", "--labels", "x,x"], "two curves are called 'x'; give them different names with --labels"),
        (["a", "a"], "two curves are called 'fixmatch "),
        (["a", "/missing/run"], "there is no run at /missing/run; name folders that hold a record.json"),
        ([], "plot: name folders of runs, or rows of a suite: --suite PAPER --row TABLE/DATASET/METHOD"),
        (["a", "--suite", "rscfed", "--row", "1/SVHN/rscfed"], "plot: name folders of runs, or rows of a suite"),
        (["--row", "1/SVHN/rscfed"], "plot: name folders of runs, or rows of a suite"),
        (["--suite", "rscfed", "--row", "1/SVHN/rscfed"], "no complete run of 1/SVHN/rscfed/labelled=1/unlabelled=9"),
        (["--suite", "rscfed", "--row", "1/SVHN/rscfd"], "unknown row '1/SVHN/rscfd'; did you mean '1/SVHN/rscfed'?"),
        (["a", "--axis", "bytes"], "--axis bytes: choose one of round, bytes, seconds that the rows"),
        (["a", "--out", "q.foo"], "--out q.foo: the suffix gives the format; use one of .png"),
        (["a", "--out", "q"], "--out q: the suffix gives the format"),
        (["a", "--out", "/nonexistent/q.png"], "--out /nonexistent/q.png: there is no folder /nonexistent"),
        (["a", "--out", "folder.png"], "--out folder.png: cannot be written there; name another file"),
    ],
)  # fmt: skip
def test_bad_plots_are_one_line(runs: list[str], capsys: Any, arguments: list[str], message: str) -> None:
    """With what to do about it."""
    Path("folder.png").mkdir()
    assert main(["plot", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and message in err and err.count("\n") == 1 and "start over" not in err
    assert out == "" and not Path("curves.png").exists()


def test_rows_of_a_suite(tmp_path: Path, drawn: list[Any]) -> None:
    """Seeds are averaged, with a band; the legend is in the order of the suite, whatever the order asked for."""
    suite = Suite(
        {
            "paper": "toy",
            "title": "Toy",
            "published": None,
            "report": "best",
            "base": {"set": {"data": "digits", "rounds": 2}},
            "datasets": {"A": {}},
            "labels": {"low": {"method": "fedavg"}, "high": {"method": "rscfed"}},
            "tables": {
                1: {
                    "title": "One",
                    "datasets": ["A"],
                    "metrics": ["acc"],
                    "rows": [
                        {"method": "high"},
                        {"method": "low", "K": 5},
                        {"method": "low", "K": 6, "set": {"data.num_clients": 6}},
                        {"method": "low", "K": 7, "set": {"data.num_clients": 7}},
                    ],
                }
            },
            "scales": {"paper": {"seeds": [1, 2, 3]}},
        }
    )
    plan = suite.plan("paper", runtime=Runtime(results_dir=str(tmp_path)))
    for row in suite.rows[:3]:
        for seed in (1, 2):
            planned = plan.run(row, seed)
            run = RunFolder(planned.folder)
            run.open(planned, FACTS)
            for number in range(2):
                run.append({"round": number, "acc": 10.0 * seed * number, "bytes_up": number, "bytes_down": number})
            run.finish()
    curves = plots.read_suite_rows(suite, ["1/A/low/K=6", "1/A/high", "1/A/low/*"], "paper", str(tmp_path))
    assert list(curves) == ["high", "low (K=5)", "low (K=6)"]
    assert {curve.seeds for curve in curves.values()} == {2}
    plots.learning_curves(curves, ["acc"], tmp_path / "curves.png", "bytes")
    (panel,) = drawn[0].axes
    assert panel.lines[0].get_xydata().tolist() == [[0, 0], [2, 15]] and panel.get_xlabel() == "bytes"
    band = panel.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(15 + 50**0.5) and len(panel.collections) == 3
    assert texts(drawn[0].legends[0]) == list(curves)
    named = plots.read_suite_rows(suite, ["1/A/high"], "paper", str(tmp_path), ["RSCFed"])
    assert list(named) == ["RSCFed"]
    with pytest.raises(ConfigError, match=r"1/A/low/K=7 .*paper"):
        plots.read_suite_rows(suite, ["1/A/low/K=7", "1/A/high"], "paper", str(tmp_path))
