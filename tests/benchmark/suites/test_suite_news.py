"""The suite of news texts: rows of a table share the setting, and every row runs on features."""

from pathlib import Path

import pytest

from benchmark.config import Run, Runtime, apply, from_dict, identity
from benchmark.launch.run import fit
from benchmark.runs.records import read_record
from datamodules.io import text
from papers import load
from runs import setting
from texts import Stub, list_texts, write_texts

ROWS = {
    row.full_name: load("news").spec.labels[row.method].method
    for row in load("news").rows
    if not row.table.endswith("-paper") and "labels alone" not in row.method
}
FIRST = list({method: name for name, method in reversed(ROWS.items())}.values())
"""The first row of each method: variants and bounds are stepped by the same code."""


def test_rows_of_a_table_share_the_setting() -> None:
    for scale in ("board", "quick"):
        papers = load("news")
        for table in (table for table in papers.tables if not table.untuned):
            configs = {row.method: papers.run(row, scale).config for row in table.rows}
            first = configs[table.reference or table.rows[0].method]
            assert all(setting(config) == setting(first) for config in configs.values())
            hidden = {name for name, c in configs.items() if c.data.init_args["hidden_labels"] == "hidden"}
            assert set(configs) - hidden == set(table.bounds) | ({"revealed labels"} & set(configs))


def test_variants_meet_the_setting_that_they_explain() -> None:
    """They stand in tables of their own, which have no reference and so are not ranked."""
    papers = load("news")
    named = {table.number: table for table in papers.tables}
    for name in ("clients", "all"):
        own, beside = named[name], named[f"{name}-diagnostics"]
        assert own.reference and not beside.reference
        for scale in ("board", "quick"):
            assert setting(papers.run(own.rows[0], scale).config) == setting(papers.run(beside.rows[0], scale).config)


def test_labels_are_those_of_the_common_settings() -> None:
    own = load("news").spec.labels
    assert load("common").spec.labels.items() <= own.items()


def test_seeds_and_data() -> None:
    papers = load("news")
    assert papers.ranked and papers.plan("board").seeds == tuple(range(20))
    for run in papers.plan("board").runs.values():
        data = run.config.data.init_args
        assert (data["texts"], data["encoder"], data["strong"]) == ("listed", "minilm", "words")
        assert data["pipeline"] == "feature_copies" and run.config.model == "mlp"


@pytest.mark.parametrize(
    ("name", "engine"), [*((name, "reference") for name in ROWS), *((name, "slots") for name in FIRST)]
)
def test_every_row_runs_a_round_on_features(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small set of texts with an encoder that counts topic words."""
    monkeypatch.setattr(text, "load", Stub().load)
    write_texts(tmp_path, 400, 40)
    list_texts(tmp_path, monkeypatch)
    papers = load("news")
    config = papers.run(papers.row(name, "board"), "board").config
    small = {
        "rounds": 2,
        "last_k": 1,
        "data.validation": 40,
        "data.num_clients": 6,
        "data.min_size": 4,
        "data.partition": "iid",
    }
    small |= {"data.num_labels": 12} if config.data.init_args["num_labels"] else {}
    small |= {"roster.participants": 3} if config.roster.get("participants") else {}
    values = apply(identity(config), {**small, "scale": "custom"})
    runtime = Runtime(
        devices=1, accelerator="cpu", threads=1, engine=engine, slots=2, data_dir=str(tmp_path),
        results_dir=str(tmp_path / "results"), wandb="off",
    )  # fmt: skip
    path = fit(Run.of(from_dict(values)).replace(runtime=runtime))
    record = read_record(path)
    assert record["status"] == "complete" and 0 <= record["final"]["acc"] <= 100
