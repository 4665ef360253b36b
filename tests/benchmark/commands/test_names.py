"""``--version``, ``list``, and lists of names in options."""

import re

from benchmark.cli import main
from benchmark.commands.common import listed
from benchmark.registry import KINDS, known_names
from benchmark.suites.suite import available
from methods.models import MODELS


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fssl-bench ")


def test_all_is_listed_with_a_line_on_each(capsys):
    """Names are read from sources; they are those of the classes that a run finds."""
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  wrn28_2 .*\(depth=28, width=2\)$", out, re.M)
    parts = re.findall(r"^(\w+):\n((?:  .+\n)+)", out, re.M)
    found = {head: re.findall(r"^  (\S+) +\S", lines, re.M) for head, lines in parts}
    classes = {"methods": known_names(KINDS["method"]), "data": known_names(KINDS["data"])}
    assert found == classes | {"models": [*MODELS], "suites": available()}


def test_words_of_an_option() -> None:
    """Brackets around a list are no part of it; those of a pattern are."""
    assert listed(None, "--methods") == []
    assert listed("a, b", "--methods") == listed("[a, b]", "--methods") == ["a", "b"]
    assert listed("1/A/FedAvg[*]", "--only") == ["1/A/FedAvg[*]"]
    assert listed("mid, twice", "--methods", {"mid, twice"}) == ["mid, twice"]
    assert listed("mid, twice,a", "--methods", {"mid, twice"}) == ["mid", "twice", "a"]
