"""What other groups report: from the papers that have a suite, from those that have none, beside our own runs."""

import doctest
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmark.report import others
from benchmark.report.layout import same_name
from benchmark.report.tables import render
from benchmark.runs.states import RunState
from benchmark.suites.published import read_others
from benchmark.suites.suite import OTHERS, Suite, load

ROOT = Path(__file__).resolve().parents[3]
PAPERS = ["cbafed", "feddb", "feddure", "fl2", "proxyfl", "rscfed"]
TITLE = "What other groups report for "
ENVIRONMENT = {"cpu": "x", "cores": 1, "threads": 1}


def frame(suite: Suite, label: str, *scales: str, seeds: int = 0) -> pd.DataFrame:
    """The lines of a method, with so many seeds of every run complete at 50.5 %."""
    tables: list[Any] = []
    for scale in scales:
        plan, runs = suite.plan(scale), {}
        for key, run in plan.runs.items():
            record = {name: {"acc": 50.5} for name in ("best", "final", "last_k_mean")}
            done = plan.seeds.index(run.config.seed) < seeds
            full = record | {"environment": ENVIRONMENT, "code_version": "0"}
            runs[key] = RunState("complete", full) if done else RunState("missing", None)
        plan.found = runs
        tables += render(suite, plan, suite.published())
    sections = {section.title: section for section in others.sections(suite, tables)}
    return sections[TITLE + label].frame


def test_a_method_is_found_in_other_suites_whatever_its_spelling() -> None:
    made = frame(load("fl2"), "fedmatch")
    by = made["reported by"].str.partition(",")[0].value_counts().to_dict()
    assert by == {"(FL)2": 18, "FedDB": 3, "FedDure": 9, "ProxyFL": 24, "FedLoKe (CIKM 2023)": 18}
    line = made[made["reported by"] == "FedDB, table 1"].iloc[0]
    setting = "partition iid, labels at all clients, 4000 labels, 100 clients (10 a round), wrn28_2, 800 rounds"
    assert line.tolist() == ["FedDB, table 1", "CIFAR10-4000", setting, "39.63 ± 1.66", "4"]


def test_a_paper_without_a_suite() -> None:
    made = frame(load("feddb"), "FedRGD")
    line = made[made["accuracy"] == "83.69 ± 7.89"].iloc[0]
    assert (line["reported by"], line["data set"], line["runs"]) == ("FedLoKe (CIKM 2023), table 1", "SVHN", "5")
    assert line["setting"].startswith("labels at all clients, 1 % of the labels, Dirichlet(0.5), 50 clients")


def test_ours_stand_beside_the_papers_own() -> None:
    """The paper's once, ours where something was run, with the data set that was."""
    suite = load("feddb")
    made = frame(suite, "FedDB", "paper", "quick", seeds=1)
    own = made[made["reported by"] == "FedDB, table 1"]
    assert own["accuracy"].tolist() == ["67.32 ± 2.31", "86.75 ± 0.90", "26.71 ± 0.87"]
    ours = made[made["reported by"].str.startswith("ours")]
    assert set(ours["accuracy"]) == {"50.50 (1 of 4)", "50.50 (1 of 3)"}
    quick = ours[ours["reported by"] == "ours, scale quick, table 1"].iloc[0]
    assert (quick["data set"], quick["runs"]) == ("digits (as CIFAR10-4000)", "1")
    assert frame(suite, "FedDB", "paper")["reported by"].str.startswith("ours").sum() == 0


def test_where_nobody_else_reports_anything_it_is_said() -> None:
    notes = {section.title: section.note for section in others.sections(load("fl2"), [])}
    assert notes[f"{TITLE}fl2"].endswith("No value from another paper is known to us.")
    assert "No value" not in notes[f"{TITLE}fedmatch"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_papers_own_method_has_a_table(paper: str) -> None:
    suite = load(paper)
    made = others.sections(suite, [])
    assert any(same_name(section.title.removeprefix(TITLE), paper) for section in made)
    for section in made:
        assert len(section.frame) >= 3, section.title
        assert section.frame["reported by"].iloc[0].startswith(suite.title.partition(":")[0])


def test_a_suite_on_top_of_another_has_its_tables_and_one_without_methods_has_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: feddb\npaper: mine\ntitle: Mine\n")
    own = load(str(path))
    assert [section.title for section in others.sections(own, [])] == [TITLE + one for one in load("feddb").reported]
    assert others.sections(load("common"), []) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_the_pages_of_papers_say_it_in_short(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a paper's page prints what stands below it; the ranges have every value of the sections."""
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs/papers" / f"{paper}.md"
    assert f'>>> ranges("{paper}")' in page.read_text(encoding="utf-8")
    found = doctest.testfile(str(page), False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0 and found.attempted >= 2
    short, sections = others.ranges(paper), others.sections(load(paper), [])
    assert short["values"].sum() == sum(len(section.frame) for section in sections)
    for label, section in zip(load(paper).reported, sections, strict=True):
        printed = section.frame["accuracy"].str.partition(" ")[0].astype(float)
        assert (short.loc[label, "lowest"].min(), short.loc[label, "highest"].max()) == (printed.min(), printed.max())


def test_every_value_of_papers_without_a_suite_is_shown_somewhere() -> None:
    shown = {one["method"] for one in read_others(OTHERS)}
    labels = {label for paper in PAPERS for label in load(paper).reported}
    assert [name for name in sorted(shown) if not any(same_name(name, label) for label in labels)] == []
