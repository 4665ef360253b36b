"""What tables and ``docs/findings`` say follows from the committed records, or from the tables of retired ones."""

import doctest
from pathlib import Path

import pytest

from benchmark.config import Runtime
from benchmark.report import leaderboard, tables
from benchmark.suites.suite import load
from checkouts import committed, in_a_checkout

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path.name for path in ROOT.glob("docs/findings/*.md") if path.name != "README.md")
# Those that are committed: a user's own lie beside them.
TABLES = (
    "rscfed-paper",
    "rscfed-partitions-paper",
    "news-board",
    "proxyfl-small",
    "proxyfl-seeds-small",
    "fl2-texts-laptop",
    "mnist-board",
    "news-own-board",
)


@pytest.mark.parametrize("page", PAGES)
def test_the_numbers_of_the_findings_are_those_of_the_files(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a page prints what stands below it."""
    monkeypatch.chdir(ROOT)
    found = doctest.testfile(str(ROOT / "docs/findings" / page), False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0 and found.attempted >= 5


@pytest.mark.parametrize("name", TABLES)
def test_the_committed_tables_are_those_of_the_committed_records(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in them is typed, and none is older than its records."""
    monkeypatch.chdir(ROOT)
    paper, _, scale = name.rpartition("-")
    suite = load(paper)
    plan = suite.plan(scale, runtime=Runtime(results_dir="results"))
    published = suite.published()
    tables.write(suite, scale, [tables.Page(suite, plan, published, one) for one in suite.tables], tmp_path)
    if suite.ranked:
        leaderboard.write(suite, plan, tmp_path, name)
    made = {path.name: path for path in (tmp_path / "tables").iterdir() if path.suffix != ".svg"}
    assert len(made) >= 3
    for file, path in made.items():
        assert path.read_text() == (ROOT / "results" / "tables" / file).read_text(), file


@in_a_checkout
def test_every_committed_run_stands_in_a_committed_table() -> None:
    """Records that no table shows are nobody's result: `results/archive` has the tables of retired ones."""
    shown = "".join((ROOT / "results" / "tables" / f"{name}.csv").read_text() for name in TABLES)
    runs = [record.parent.name for record in committed("results/runs/*/record.json")]
    assert runs
    assert [name for name in runs if name.rpartition("-")[2] not in shown] == []
