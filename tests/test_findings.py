"""What ``docs/findings.md`` says follows from the committed records."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_numbers_of_the_findings_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of the page prints what stands below it."""
    monkeypatch.chdir(ROOT)
    found = doctest.testfile(str(ROOT / "docs/findings.md"), False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0 and found.attempted > 10
