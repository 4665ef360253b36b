"""``--version``, ``list``, and lists of names in options."""

from importlib import import_module

import pytest

from benchmark.cli import main
from benchmark.commands.common import listed
from benchmark.registry import KINDS, own_names
from benchmark.suites.suite import available
from methods.models import MODELS


def test_version_and_lists(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fssl-bench ")
    for what, name, about in (
        ("methods", "rscfed", "random sampling consensus"),
        ("data", "digits", "scikit-learn's embedded handwritten digits"),
        ("models", "wrn28_2", "(depth=28, width=2)"),
        ("suites", "fl2", "Overcoming Few Labels"),
    ):
        assert main(["list", what]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} ")]
        assert about in line
    assert main(["list", "papers"]) == 2


def test_all_is_listed_with_a_line_on_each(capsys):
    """Names are read from sources; they are those of the classes that a run finds."""
    assert main(["list"]) == 0
    found = {}
    for section in capsys.readouterr().out.split("\n\n"):
        head, *lines = section.splitlines()
        found[head] = [line.split(maxsplit=1) for line in lines]
    assert all(len(line) == 2 for lines in found.values() for line in lines)
    assert {head: [name for name, _ in lines] for head, lines in found.items()} == {
        "methods:": own_names(KINDS["method"]),
        "data:": own_names(KINDS["data"]),
        "models:": list(MODELS),
        "suites:": available(),
    }


def test_a_terminal_shows_lines_whole(monkeypatch, capsys):
    """Their further lines stand below the text; without a terminal every name has one line."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["list", "models"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60 and "``" not in out
    first, second, *_ = out.splitlines()
    assert first.startswith("small_cnn") and second.startswith(" " * first.index("Two")) and second.strip()


def test_what_other_packages_offer_is_listed_without_importing_it(install, capsys):
    """A name that one of ours has, too, is listed by its path, which is how a run finds it."""
    install("others", "1 / 0", "[fssl_bench.methods]\nmine = {package}:Mine\nfedavg = {package}:Mine\n")
    assert main(["list", "methods"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["mine"] == lines["others.Mine"] == "of the package others: others.Mine"
    assert lines["fedavg"].startswith("FedAvg")


def test_a_module_that_cannot_be_read_is_named_with_its_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("methods.__path__", [*import_module("methods").__path__, str(tmp_path)])
    (tmp_path / "torn.py").write_text("x = 1\ndef\n")
    assert main(["list", "methods"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("torn ")]
    assert line.endswith(f"cannot be read: invalid syntax ({tmp_path / 'torn.py'}:2)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, []),
        ("a, b", ["a", "b"]),
        ("[a, b]", ["a", "b"]),
        ("1/A/FedAvg[*]", ["1/A/FedAvg[*]"]),
        ("mid, twice", ["mid, twice"]),
        ("mid, twice,a", ["mid", "twice", "a"]),
    ],
)
def test_words_of_an_option(text: str | None, words: list[str]) -> None:
    """Brackets around a list are no part of it; those of a pattern are."""
    assert listed(text, "--methods", {"mid, twice"}) == words
