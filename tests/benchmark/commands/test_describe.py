"""``describe``: a partition drawn, exported, imported."""

from benchmark.cli import main
from datamodules.digits import Digits
from datamodules.partition.partition import Partition


def test_describe_draws_exports_and_imports(here, capsys):
    arguments = ["describe", "--data", "digits", "--data.beta", "0.3", "--data.num_clients", "4"]
    assert main([*arguments, "--export", "part.json", "--plot", "part.png"]) == 0
    out = capsys.readouterr().out
    saved = Partition.load("part.json", Digits().read().train_labels)
    assert saved.hash in out and saved.num_clients == 4 and "1437" in out
    assert (here / "part.png").read_bytes().startswith(b"\x89PNG") and (here / "part.png").stat().st_size > 10_000
    again = ["describe", "--data", "digits", "--data.partition_file", "part.json"]
    assert main([*again, "--data.num_clients", "4"]) == 0
    assert saved.hash in capsys.readouterr().out
    assert main(again) == 2
    assert "part.json has 4 clients; give --data.num_clients 4" in capsys.readouterr().err


def test_describe_shows_the_labels_of_a_server_and_of_many_clients(here, capsys):
    server = ["--data.scenario", "server", "--data.num_labels", "40", "--data.num_clients", "60"]
    assert main(["describe", "--data", "digits", *server, "--data.min_size", "2", "--plot", "server.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split()[:4] == ["server", "40", "40", "10"]
    assert sum(int(line.split()[1]) for line in lines[4:65]) == 1437 == int(lines[65].split()[1])
