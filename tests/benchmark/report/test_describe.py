"""Looking at a partition: the seed that drew it, and files that cannot be written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.cli import main
from benchmark.config import RunConfig
from benchmark.report.describe import heat_map
from datamodules.digits import Digits
from datamodules.partition.partition import Partition
from federations import make_data

DIGITS = ["describe", "--data", "digits"]
OF_THE_RUN = [*DIGITS, "--data.partition_seed", "null"]


def first_and_hash(capsys: Any) -> tuple[str, str]:
    lines = capsys.readouterr().out.splitlines()
    return lines[0], next(line.split()[-1] for line in lines if line.startswith("partition hash"))


def test_the_seed_that_drew_the_partition_is_shown(capsys: Any) -> None:
    """The run's where the data set has none: that of ``--seed``, or the default of a run."""
    assert main(OF_THE_RUN) == 0
    title, drawn = first_and_hash(capsys)
    assert f"seed {RunConfig.seed}," in title
    assert main([*OF_THE_RUN, "--seed", "5"]) == 0
    title, other = first_and_hash(capsys)
    assert "seed 5," in title and other != drawn
    assert main([*DIGITS, "--data.partition_seed", "5"]) == 0
    assert first_and_hash(capsys) == (title, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DIGITS, "--seed", "5"], "--seed 5: has no effect, since data.partition_seed is 1337; add --data."),
        ([*OF_THE_RUN, "--seed", "-1"], "partition_seed is -1"),
        ([*DIGITS, "--plot", "q.foo"], "--plot q.foo: the suffix gives the format; use one of .png"),
        ([*DIGITS, "--plot", "/nonexistent/q.png"], "--plot /nonexistent/q.png: name a file"),
        ([*DIGITS, "--export", "/nonexistent/x"], "--export /nonexistent/x: name a file"),
        ([*DIGITS, "--export", "."], "--export .: name a file"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(capsys: Any, arguments: list[str], message: str) -> None:
    """Before anything is drawn or printed."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and message in err and err.count("\n") == 1 and out == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--data.partition_variant", "per_client"], "Dirichlet(0.8) per client, seed"),
        (
            ["--data.partition", "pairs", "--data.partition_variant", "per_client"],
            "Dirichlet(0.8) over pairs of clients, seed",
        ),
        (
            ["--data.scenario", "all_clients", "--data.num_labels", "200", "--data.labelled_partition", "iid"],
            "Dirichlet(0.8), labelled images iid, seed",
        ),
    ],
)
def test_the_title_says_how_images_are_spread(options: list[str], told: str, capsys: Any) -> None:
    """``pairs`` knows no variants, and the labelled pool may be spread in another way."""
    assert main([*DIGITS, *options]) == 0
    assert f"clients, {told}" in first_and_hash(capsys)[0]


def test_an_export_may_have_any_name(tmp_path: Path, capsys: Any) -> None:
    """Its suffix says nothing."""
    assert main([*DIGITS, "--export", str(tmp_path / "part")]) == 0
    assert Partition.load(tmp_path / "part", Digits().read().train_labels).hash == first_and_hash(capsys)[1]


@pytest.mark.parametrize(("clients", "labels"), [(40, 40), (41, 21), (1000, 40)])
def test_many_clients_are_not_all_named(clients: int, labels: int) -> None:
    """No more than forty names find room."""
    counts = np.ones((clients, 2), dtype=np.int64)
    figure = heat_map([str(k) for k in range(clients)], counts, counts, ["a", "b"], "")
    assert len(figure.axes[0].get_yticks()) == labels


def test_a_new_split_shows_its_own_images(capsys: Any) -> None:
    """Class counts belong to the training images that the run would have, not to the published ones."""
    assert main([*DIGITS, "--data.split", "random80", "--data.num_clients", "3", "--data.partition", "iid"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [[int(n) for n in row[4:]] for row in rows if row[:1] in (["0"], ["1"], ["2"])]
    assert shown == make_data(split="random80", num_clients=3).class_counts("all").tolist()
