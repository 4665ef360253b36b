"""``--dry-run``: what a command would take."""

import pytest

from benchmark.cli import main
from toy_suite import table

FEDAVG = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "2", "--seed", "1"]
TABLE = ["table", "--paper", "toy.yaml", "--jobs", "1", "--data-dir", "d", "--seeds", "1"]


pytestmark = pytest.mark.usefixtures("machine")  # other programs may use the real one while tests run


def test_a_dry_run_says_what_a_table_takes_and_runs_nothing(here, fitted, capsys):
    """As far as records of the same rows tell; no more runs go on at once than are left."""
    assert table("--seeds", "1,2", "--dry-run") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 runs, 8 rounds; 8 rounds are left how long they take on this machine is unknown" in out
    assert fitted == [] and not list(here.glob("results/**/*"))
    assert table("--seeds", "1") == 0
    capsys.readouterr()
    assert table("--seeds", "1,2", "--dry-run") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "unknown" not in out and "about" in out and out.count(" 1 1/A/") == 2
    for jobs in ("2", "8"):
        assert table("--seeds", "1,2", "--dry-run", "--jobs", jobs) == 0
        assert capsys.readouterr().out.partition(" at once")[0].split()[-1] == "2"


def test_a_dry_run_that_would_overwrite_counts_all_rounds(here, fitted, capsys):
    for command in (FEDAVG, TABLE):
        assert main(command) == 0
        runs = len(fitted)
        capsys.readouterr()
        assert main([*command, "--overwrite", "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert f"{runs} run{'s' if runs > 1 else ''}, {2 * runs} rounds; {2 * runs} rounds are left" in out
        assert len(fitted) == runs and all((run.folder / "record.json").exists() for run in fitted)
        fitted.clear()
