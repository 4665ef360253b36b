"""What tables and ``docs/findings.md`` say follows from the committed records."""

import doctest
from pathlib import Path

import pytest

from benchmark.config import Runtime
from benchmark.report import leaderboard, tables
from benchmark.suites.suite import load

ROOT = Path(__file__).resolve().parents[1]
TABLES = (  # those that are committed: a user's own lie beside them
    "cbafed-small",
    "common-laptop",
    "feddb-small",
    "feddure-small",
    "fl2-small",
    "rscfed-lite",
    "rscfed-paper",
)


def test_the_numbers_of_the_findings_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of the page prints what stands below it."""
    monkeypatch.chdir(ROOT)
    found = doctest.testfile(str(ROOT / "docs/findings.md"), False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0 and found.attempted > 10


@pytest.mark.parametrize("name", TABLES)
def test_the_committed_tables_are_those_of_the_committed_records(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in them is typed, and none is older than its records."""
    monkeypatch.chdir(ROOT)
    paper, _, scale = name.partition("-")
    suite = load(paper)
    plan = suite.plan(scale, runtime=Runtime(results_dir="results"))
    runs = tables.collect(plan)
    tables.write(suite, scale, tables.render(suite, plan, runs, suite.published()), tmp_path, None)
    if suite.ranked:
        leaderboard.write(suite, plan, runs, tmp_path, name, None)
    made = {path.name: path for path in (tmp_path / "tables").iterdir() if path.suffix != ".svg"}
    assert len(made) >= 3
    for file, path in made.items():
        assert path.read_text() == (ROOT / "results" / "tables" / file).read_text(), file
