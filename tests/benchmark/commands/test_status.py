"""``status``: what has been run of a suite."""

from benchmark.cli import main
from toy_suite import table


def test_status(here, fitted, capsys):
    """A line for each row, or for each run, and the errors of those that have failed."""
    table("--seeds", "666,1")
    capsys.readouterr()
    for more in ([], ["--runs"]):
        assert main(["status", "--paper", "toy.yaml", "--seeds", "666,1,5", *more]) == 0
        out = capsys.readouterr().out
        assert "2 complete, 2 failed, 2 missing" in out and "ZeroDivisionError: seed 666" in out
        assert out.count("1 complete, 1 failed, 1 missing") == (0 if more else 3)
