"""``--version`` and ``list``."""

from benchmark.cli import main


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
