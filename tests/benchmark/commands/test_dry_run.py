"""``--dry-run``: what a command would take."""

import pytest

from benchmark.cli import main
from benchmark.commands import dry_run
from toy_suite import table


def test_a_dry_run_says_what_a_table_takes_and_runs_nothing(here, fitted, capsys):
    assert table("--seeds", "1,2", "--dry-run") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 runs, 8 rounds; 8 rounds are left about " in out and out.count("1 calibration") == 2
    assert "what clients keep between visits takes up to" in out and "are free)" in out
    assert fitted == [] and not list(here.glob("results/**/*"))


@pytest.mark.parametrize(("idle", "told"), [(1, True), (4, False)])
def test_a_dry_run_says_whether_others_use_the_machine(here, fitted, capsys, monkeypatch, idle, told):
    """Where rounds were measured beside them; records were made at another time."""
    monkeypatch.setattr(dry_run, "cores", lambda: 4)
    monkeypatch.setattr(dry_run, "idle_cores", lambda: idle)
    assert table("--seeds", "1", "--dry-run") == 0
    assert ("other programs were using the machine" in capsys.readouterr().out) == told
    assert table("--seeds", "1") == 0
    assert table("--seeds", "1,2", "--dry-run") == 0
    assert "other programs" not in capsys.readouterr().out


def test_a_dry_run_of_a_single_run(here, fitted, capsys):
    command = ["fit", "--suite", "toy.yaml", "--row", "1/A/low", "--scale", "quick"]
    assert main(command) == 0
    assert main([*command, "--seed", "1,2", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 runs, 4 rounds; 2 rounds are left about " in out and "1 record fedavg on digits" in out
    assert len(fitted) == 1
