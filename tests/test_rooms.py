"""The rooms of the code: imports point one way, and a folder's listing answers what it holds."""

import ast
from pathlib import Path

import pytest

from benchmark.registry import KINDS, own_names

ROOT = Path(__file__).resolve().parents[1]
LOWER = {"datamodules": (), "methods": ("datamodules",), "benchmark": ("datamodules", "methods")}


def imported_packages(file: Path) -> set[str]:
    """Top-level packages that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", LOWER)
def test_imports_point_one_way(package: str) -> None:
    """``benchmark -> methods -> datamodules``, and nothing back."""
    forbidden = set(LOWER) - {package, *LOWER[package]}
    for file in (ROOT / package).rglob("*.py"):
        assert not imported_packages(file) & forbidden, file


def test_the_federation_knows_nothing_of_who_starts_it() -> None:
    """It imports no room that launches, commands or shows."""
    above = {"launch", "commands", "suites", "site", "perf"}
    for file in (ROOT / "benchmark" / "federation").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not [room for room in above if f"benchmark.{room}" in text], file


@pytest.mark.parametrize(("slot", "folder"), [("method", "methods"), ("data", "datamodules")])
def test_a_listing_names_what_can_be_run(slot: str, folder: str) -> None:
    """Beside ``base.py``, every file of the folder is a method, or a data set."""
    files = {file.stem for file in (ROOT / folder).glob("*.py")} - {"__init__", "base"}
    assert files == set(own_names(KINDS[slot]))


def test_the_command_line_lies_on_top() -> None:
    """What leads from the command line to one run, and the rooms behind it."""
    files = {file.stem for file in (ROOT / "benchmark").glob("*.py")}
    known = {"__init__", "__main__", "api", "cli", "console", "run", "tuning", "config", "registry", "files"}
    assert files <= known
