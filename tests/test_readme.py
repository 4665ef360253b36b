"""README and docs do what they say: the example is a method, commands parse, links and options exist."""

import inspect
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmark import cli
from benchmark.classes import KINDS, find_class, known_names
from benchmark.suite import load
from datamodules.sources import CLASS_COUNTS
from federations import make_federation, run_rows
from methods.base import FedMethod

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.strip().partition("#")[0].strip()
    for line in README.splitlines()
    if re.match(r"    (\.venv/bin/python -m benchmark|make|\.venv/bin/fabric run) ", line)
]


@pytest.fixture(params=[("README.md", "MyMethod", 36), ("docs/add-a-method.md", "OwnTeacher", 80)], ids=lambda p: p[1])
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A page's method, importable as a user's own module."""
    page, name, lines = request.param
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    assert len(code.splitlines()) <= lines
    module = f"example_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{module}.{name}"


def test_example_trains(example: str) -> None:
    """It runs three rounds on digits through the real loop."""
    rows = run_rows(make_federation(example))
    assert len(rows) == 3
    assert rows[-1]["participants"] == 6


def test_example_keeps_the_contract(example: str, pytestconfig: pytest.Config) -> None:
    """The checks that the pages promise pass for it."""
    contract = runpy.run_path(str(ROOT / "tests/contract/test_contract.py"))
    for name in (
        "test_a_run_is_finite_and_learns_something",
        "test_resume_is_exact",
        "test_hidden_labels_are_not_read",
        "test_clients_with_one_image_or_none",
        "test_docstring_names_its_sources",
    ):
        contract[name](example)


def test_hooks_of_the_tutorial_exist() -> None:
    """Each is a method of the base class, with the arguments that the page gives it."""
    page = (ROOT / "docs/add-a-method.md").read_text(encoding="utf-8")
    hooks = re.findall(r"^\|[^|]+\| `(\w+)\(([^)]*)\)` \|", page, flags=re.M)
    assert len(hooks) >= 13
    for name, arguments in hooks:
        assert list(inspect.signature(getattr(FedMethod, name)).parameters)[1:] == arguments.split(", "), name


def test_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command line of the README is accepted by the program, up to the moment it would start."""
    seen: list[Any] = []
    for name in cli.COMMANDS:
        monkeypatch.setitem(cli.COMMANDS, name, lambda options, dotted, name=name: seen.append((name, dotted)) or 0)
    count = 0
    for command in COMMANDS:
        words = shlex.split(command)
        if "benchmark" in words and "-m" in words:
            arguments = words[words.index("benchmark") + 1 :]
        elif words[0].endswith("fabric"):
            arguments = ["fit", *words[words.index("--") + 1 :]]
        else:
            continue
        assert cli.main(arguments) == 0, command
        count += 1
    assert len(seen) == count >= 6


def test_make_targets_exist() -> None:
    """``make`` commands name targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {word for line in re.findall(r"\bmake ([a-z0-9-]+)", README) for word in [line]}
    assert {"bench-table1", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_links_and_suites_exist() -> None:
    """Relative links lead somewhere, and the suites of the table can be loaded."""
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), (page.name, link)
    named = re.findall(r"^\|[^|]+\|[^|]+\| `(\w+)` \|", README, flags=re.M)
    assert named
    for paper in named:
        assert load(paper).rows


def test_data_cards_name_every_data_set() -> None:
    """The table of ``docs/data.md`` has all data sets, with the sizes that their classes have."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs/data.md").read_text(encoding="utf-8"), flags=re.M)
    assert {name for name, _ in rows} == set(known_names(KINDS["data"]))
    for name, cells in rows:
        kind = find_class(name, KINDS["data"])
        train, test, classes, seen, _ = (cell.strip().replace(" ", "") for cell in cells.split("|"))
        assert (int(train), int(classes)) == (kind.train_size, kind.num_classes), name
        if name in CLASS_COUNTS:
            assert tuple(sum(counts) for counts in CLASS_COUNTS[name]) == (int(train), int(test))
        assert seen == (f"{kind.image_size}×{kind.image_size}" if kind.mean else "featurevectors")
