"""The suite of news texts: every method runs on features."""

from pathlib import Path

import pytest

from benchmark.config import Run, Runtime, apply, from_dict, identity
from benchmark.launch.run import fit
from benchmark.runs.records import read_record
from datamodules.io import text
from papers import load
from texts import Stub, list_texts, write_texts

papers = load("news")
ROWS = {papers.spec.labels[row.method].method: row for row in reversed(papers.rows) if not row.table.endswith("-paper")}
"""The first row of each method: variants, controls and bounds are stepped by the same code."""


@pytest.mark.parametrize(
    ("method", "engine"), [*((method, "reference") for method in ROWS), ("fixmatch", "slots"), ("feddure", "slots")]
)
def test_every_method_runs_a_round_on_features(
    method: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small set of texts with an encoder that counts topic words."""
    monkeypatch.setattr(text, "load", Stub().load)
    write_texts(tmp_path, 400, 40)
    list_texts(tmp_path, monkeypatch)
    config = papers.run(ROWS[method], "board").config
    small = {"rounds": 2, "last_k": 1, "scale": "custom", "data.validation": 40}
    small |= {"data.num_clients": 6, "data.min_size": 4, "data.partition": "iid"}
    small |= {"data.num_labels": 12} if config.data.init_args["num_labels"] else {}
    small |= {"roster.participants": 3} if config.roster.get("participants") else {}
    values = apply(identity(config), small)
    runtime = Runtime(
        devices=1, accelerator="cpu", threads=1, engine=engine, slots=2, data_dir=str(tmp_path),
        results_dir=str(tmp_path / "results"), wandb="off",
    )  # fmt: skip
    assert read_record(fit(Run.of(from_dict(values)).replace(runtime=runtime)))["status"] == "complete"
