"""The suite of pictures of clothes: rows of a table share the setting, and they run on the small network."""

from pathlib import Path

import pytest

from benchmark.board.admit import candidates
from benchmark.config import Run, Runtime, apply, from_dict, identity, resolve
from benchmark.launch.run import fit
from benchmark.runs.records import read_record
from papers import load
from runs import setting

ROWS = [
    "clients/Fashion-MNIST/RSCFed",
    "server/Fashion-MNIST/FedCon",
    "all/Fashion-MNIST/FedMatch at clients",
    "all/Fashion-MNIST/ProxyFL",
]
"""Of each setting, and of methods that need an image's shape or the network's head; texts have the same rows."""


def test_rows_of_a_table_share_the_setting() -> None:
    papers = load("images")
    for table in papers.tables:
        configs = {row.method: papers.run(row, "board").config for row in table.rows}
        first = configs[table.reference or table.rows[0].method]
        assert all(setting(config) == setting(first) for config in configs.values())
        hidden = {name for name, c in configs.items() if c.data.init_args["hidden_labels"] == "hidden"}
        assert set(configs) - hidden == set(table.bounds) | ({"revealed labels"} & set(configs))


def test_rows_and_labels_of_digits_are_those_of_the_texts() -> None:
    """But for the two of the central trial, which are in no table."""
    own, texts = load("mnist"), load("news")
    assert [(t.number, [row.method for row in t.rows]) for t in own.tables] == [
        (t.number, [row.method for row in t.rows]) for t in texts.tables
    ]
    more = set(own.spec.labels) - set(texts.spec.labels)
    assert more == {"central supervised", "central FixMatch"}
    assert texts.spec.labels.items() <= own.spec.labels.items()


def test_seeds_and_data() -> None:
    papers = load("images")
    assert papers.ranked and papers.report == "averaged" and papers.plan("board").seeds == tuple(range(8))
    streams = set()
    for run in papers.plan("board").runs.values():
        data = run.config.data.init_args
        assert (data["side"], data["channels"], data["validation"]) == (28, 1, 50_000)
        assert run.config.model == "lenet" and run.config.average_last == 20
        streams.add(data["partition_stream"])
    assert streams == {"images/clients", "images/server", "images/all"}


def test_one_central_trial_serves_all_settings() -> None:
    """Its two rows differ in the weight of unlabelled images alone, and its seeds were in no pilot."""
    asked = candidates(load("images"), "board", Runtime())
    assert [one.name for one in asked] == [f"{name}/Fashion-MNIST" for name in ("clients", "server", "all")]
    trials = [{label: one.runs[label] for label in (one.supervised, one.semi_supervised)} for one in asked]
    ids = {run.id for trial in trials for runs in trial.values() for run in runs}
    assert len(ids) == 2 * len(trials[0]["central FixMatch"])
    supervised, fixmatch = (runs[0].config for runs in trials[0].values())
    weights = [config.method.init_args["lambda_u"] for config in (supervised, fixmatch)]
    assert weights == [0, 1] and supervised.data.init_args["num_clients"] == 1
    same = apply(identity(supervised), {"method.lambda_u": 1})
    assert identity(resolve(from_dict(same))) == identity(fixmatch)
    assert min(run.config.seed for run in trials[0]["central FixMatch"]) >= 1010


@pytest.mark.parametrize("name", ROWS)
def test_a_row_runs_a_round_on_grey_images(name: str, tmp_path: Path) -> None:
    """On digits, which need no download."""
    papers = load("images")
    config = papers.run(papers.row(name, "board"), "board").config
    small = {
        "data": "digits",
        "rounds": 1,
        "last_k": 1,
        "data.validation": 1000,
        "data.num_clients": 6,
        "data.min_size": 4,
        "data.partition": "iid",
    }
    small |= {"data.num_labels": 20} if config.data.init_args["num_labels"] else {}
    small |= {"data.labelled_histogram": [2] * 10} if config.data.init_args["labelled_histogram"] else {}
    small |= {"roster.participants": 3} if config.roster.get("participants") else {}
    values = apply(identity(config), {**small, "scale": "custom"})
    runtime = Runtime(devices=1, accelerator="cpu", threads=1, results_dir=str(tmp_path / "results"), wandb="off")
    path = fit(Run.of(from_dict(values)).replace(runtime=runtime))
    record = read_record(path)
    assert record["status"] == "complete" and 0 <= record["final"]["acc"] <= 100
