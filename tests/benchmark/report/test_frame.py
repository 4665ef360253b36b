"""All results as one frame."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmark.config import Run, RunConfig, Runtime
from benchmark.registry import ClassSpec
from benchmark.report.frame import export
from benchmark.runs.folder import RunFolder
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError, RunError
from run_folders import FACTS, completed
from toy_suite import SUITE


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """One whose row ``low`` stands in two tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(SUITE)
    return load("toy.yaml")


def test_a_line_for_each_reading_and_row(suite, tmp_path):
    runtime = Runtime(results_dir=str(tmp_path))
    low, mid = [next(row for row in suite.rows if row.method == name) for name in ("low", "mid")]
    for row, last in ((low, 60.0), (mid, 70.0)):
        completed(suite.runs(row, "quick", runtime=runtime)[1], 50.0, last)
    other = Run.of(RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), rounds=2, runtime=runtime))
    completed(other, 10.0, 20.0)
    failed = other.replace(seed=7)
    folder = RunFolder(failed.folder)
    folder.open(failed, FACTS)
    folder.fail(RunError("the loss is not finite"))
    going = RunFolder(other.replace(seed=8).folder)
    going.open(other.replace(seed=8), FACTS)

    assert export(tmp_path, tmp_path / "out" / "all.parquet", [suite]) == 4
    frame = pd.read_parquet(tmp_path / "out" / "all.parquet")
    last = frame[(frame["reading"] == "last") & (frame["metric"] == "acc")].set_index(["table", "method"])["value"]
    assert last.loc[("1", "low")] == last.loc[("2", "low")] == 60.0 and last.loc[("1", "mid")] == 70.0
    assert frame["reading"].value_counts().to_dict() == {"best": 4, "last": 4, "last_k_mean": 4}
    assert set(frame.loc[frame["suite"].isna(), "seed"]) == {other.config.seed, 7}
    (lost,) = frame[frame["status"] == "failed"].to_dict("records")
    assert lost["seed"] == 7 and pd.isna(lost["value"]) and pd.isna(lost["reading"])
    written = pd.read_csv(tmp_path / "out" / "all.csv", dtype={"table": str})
    assert list(written) == list(frame) and written["value"].tolist()[:3] == frame["value"].tolist()[:3]


def test_a_record_of_other_defaults_is_of_no_row(suite, tmp_path):
    """It has the id of a row's run, but not its configuration."""
    run = suite.runs(suite.rows[0], "quick", runtime=Runtime(results_dir=str(tmp_path)))[1]
    completed(replace(run, config=replace(run.config, last_k=1)), 50.0, 60.0)
    export(tmp_path, tmp_path / "all.parquet", [suite])
    assert pd.read_parquet(tmp_path / "all.parquet")["suite"].isna().all()


def test_what_cannot_be_written(suite, tmp_path):
    with pytest.raises(ConfigError, match="parquet"):
        export(tmp_path, tmp_path / "all.csv", [suite])
    with pytest.raises(ConfigError, match="no run"):
        export(tmp_path, tmp_path / "all.parquet", [suite])
