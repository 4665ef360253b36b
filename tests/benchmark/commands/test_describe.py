"""Looking at a partition: its clients, the seed that drew it, and the file that keeps it."""

from pathlib import Path
from typing import Any

from benchmark.cli import main

DIGITS = ["describe", "--data", "digits"]


def first_and_hash(capsys: Any) -> tuple[str, str]:
    lines = capsys.readouterr().out.splitlines()
    return lines[0], next(line.split()[-1] for line in lines if line.startswith("partition hash"))


def test_the_options_and_the_seed_that_drew_the_partition_are_shown(capsys: Any) -> None:
    drawn = []
    for seed in ("5", "5", "6"):
        assert main([*DIGITS, "--data.partition_seed", seed]) == 0
        title, digest = first_and_hash(capsys)
        assert title.endswith(f", partition_seed={seed}") and "beta=0.8" in title
        drawn.append(digest)
    assert drawn[0] == drawn[1] != drawn[2]


def table(capsys: Any) -> list[list[str]]:
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [row for row in rows if row and row[0].isdigit()]


def test_a_partition_is_exported_and_imported(tmp_path: Path, capsys: Any) -> None:
    """Under any name: its suffix says nothing."""
    file = str(tmp_path / "part")
    assert main([*DIGITS, "--data.beta", "0.3", "--data.num_clients", "4", "--export", file]) == 0
    drawn = table(capsys)
    assert len(drawn) == 4
    again = [*DIGITS, "--data.partition_file", file]
    assert main([*again, "--data.num_clients", "4"]) == 0
    assert table(capsys) == drawn
    assert main(again) == 2
    assert "has 4 clients; give --data.num_clients 4" in capsys.readouterr().err


def test_the_labels_of_a_server_and_many_clients_are_shown(capsys: Any) -> None:
    server = ["--data.scenario", "server", "--data.num_labels", "40", "--data.num_clients", "60"]
    assert main([*DIGITS, *server, "--data.min_size", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split()[:4] == ["server", "40", "40", "10"]
    assert sum(int(line.split()[1]) for line in lines[4:65]) == 1437 == int(lines[65].split()[1])
