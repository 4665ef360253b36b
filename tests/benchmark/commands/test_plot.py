"""``plot``: curves of runs."""

from benchmark.cli import main
from toy_suite import table


def test_plot(here, fitted, capsys):
    table("--seeds", "1")
    runs = [str(path) for path in here.glob("results/runs/fedavg-*")]
    assert main(["plot", *runs, "--columns", "acc", "--out", "curves.png"]) == 0
    assert (here / "curves.png").stat().st_size > 1000
    assert main(["plot", *runs, "--columns", "auc"]) == 2
    assert main(["plot", "nowhere"]) == 2
    errors = capsys.readouterr().err
    assert "no run has a column 'auc'" in errors and "nowhere" in errors
