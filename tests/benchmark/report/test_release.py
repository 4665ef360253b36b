"""All results of a release: tables, and ids of their lines."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from benchmark.cli import main
from benchmark.config import Run, RunConfig, Runtime
from benchmark.registry import ClassSpec
from benchmark.report.release import export
from benchmark.runs.folder import RunFolder
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError, RunError
from run_folders import FACTS, completed


@pytest.fixture
def suite(here):
    """One whose row ``low`` stands in two tables."""
    return load("toy.yaml")


def test_a_line_for_each_reading_and_row(suite, tmp_path):
    """A run of no row is told, too, and so is one that has failed; one that goes on is not."""
    runtime = Runtime(results_dir=str(tmp_path))
    completed(suite.runs(suite.rows[0], "quick", runtime=runtime)[1], 50.0, 60.0)
    other = Run.of(RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), rounds=2, runtime=runtime))
    completed(other, 10.0, 20.0)
    failed, going = (RunFolder(other.replace(seed=seed).folder) for seed in (7, 8))
    failed.open(other.replace(seed=7), FACTS)
    failed.fail(RunError("the loss is not finite"), other.replace(seed=7))
    going.open(other.replace(seed=8), FACTS)

    file = tmp_path / "out" / "all.parquet"
    assert export(tmp_path, file, [suite]) == 3
    frame = pd.read_parquet(file)
    assert len(pd.read_csv(file.with_suffix(".csv"))) == len(frame) and frame["id"].is_unique
    assert frame["reading"].value_counts().to_dict() == {"best": 3, "last": 3, "last_k_mean": 3, "round": 6}
    last = frame[frame["reading"] == "last"].set_index(["table", "method"])["acc"]
    assert last.loc[("1", "low")] == last.loc[("2", "low")] == 60.0
    rounds = frame[frame["reading"] == "round"].sort_values(["acc", "round"])
    assert rounds[["acc", "round"]].values.tolist() == [[10, 0], [20, 1], [50, 0], [50, 0], [60, 1], [60, 1]]
    assert set(frame.loc[frame["suite"].isna(), "seed"]) == {other.config.seed, 7}
    (lost,) = frame[frame["status"] == "failed"].to_dict("records")
    assert lost["seed"] == 7 and pd.isna(lost["acc"]) and pd.isna(lost["reading"]) and pd.isna(lost["bytes_up"])

    shutil.rmtree(failed.path)
    completed(other.replace(seed=9), 30.0, 40.0)
    export(tmp_path, file, [suite])
    again = pd.read_parquet(file)
    assert set(frame["id"]) - set(again["id"]) == {lost["id"]}, "all others keep theirs"
    assert set(again.loc[~again["id"].isin(frame["id"]), "seed"]) == {9}


def test_the_documentation_describes_every_column(suite, tmp_path):
    completed(suite.runs(suite.rows[0], "quick", runtime=Runtime(results_dir=str(tmp_path)))[1], 50.0, 60.0)
    assert main(["records", "--export", "all.parquet", "--papers", "toy.yaml", "--results_dir", "."]) == 0
    page = (Path(__file__).parents[3] / "docs/usage/records.md").read_text()
    section = page.partition("## All results in one table")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall("`(.*?)`", row)}
    assert {*pd.read_parquet(tmp_path / "all.parquet")} == named | {"acc"}


def test_what_cannot_be_written(suite, tmp_path):
    with pytest.raises(ConfigError, match="parquet"):
        export(tmp_path, tmp_path / "all.csv", [suite])
    with pytest.raises(ConfigError, match="no run"):
        export(tmp_path, tmp_path / "all.parquet", [suite])
