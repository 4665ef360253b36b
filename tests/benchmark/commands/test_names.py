"""``--version``, ``list``, and lists of names in options."""

import pytest

from benchmark.cli import main
from benchmark.commands.common import listed


def test_version_and_lists(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fssl-bench ")
    for what, name, about in (
        ("methods", "rscfed", "Random sampling consensus"),
        ("data", "digits", "scikit-learn's embedded handwritten digits"),
        ("models", "wrn28_2", "(depth=28, width=2)"),
    ):
        assert main(["list", what]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} ")]
        assert about in line
    assert main(["list", "papers"]) == 2


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
