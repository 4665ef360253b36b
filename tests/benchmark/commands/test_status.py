"""``status``: what has been run of a suite."""

from benchmark.cli import main
from benchmark.runs.records import read_record
from toy_suite import table


def test_status(here, fitted, capsys):
    table("--seeds", "666,1")
    record = read_record(next(here.glob("results/runs/fedavg-*")))
    capsys.readouterr()
    assert main(["status", "--paper", "toy.yaml", "--seeds", "666,1,5"]) == 0
    rows = capsys.readouterr().out
    assert main(["status", "--paper", "toy.yaml", "--seeds", "666,1,5", "--runs"]) == 0
    runs = capsys.readouterr().out
    for out in (rows, runs):
        assert "2 complete, 2 failed, 2 missing" in out
        assert "1/A/low" in out and "51.00" in out and "ZeroDivisionError: seed 666" in out
    assert rows.count("1 complete, 1 failed, 1 missing") == 3 and record["run_id"] in runs
