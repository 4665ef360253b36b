"""``verify``: whether two runs are the same."""

from benchmark.cli import main


def test_verify(here, fitted, capsys):
    """0 for equal runs wherever they are, 1 for others; a folder without a run is bad input."""
    fit = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "4"]
    assert main([*fit, "--seed", "1,2"]) == main([*fit, "--seed", "1", "--results_dir", "again"]) == 0
    one, other = (str(run.folder) for run in fitted[:2])
    (again,) = map(str, here.glob("again/runs/*"))
    capsys.readouterr()
    assert main(["verify", one, again]) == 0
    assert "config: equal" in capsys.readouterr().out
    assert main(["verify", one, other]) == 1
    assert "config: seed 1 | 2" in capsys.readouterr().out
    assert main(["verify", one, "nowhere"]) == 2
