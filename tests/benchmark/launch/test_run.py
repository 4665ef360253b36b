"""Whole runs from their configuration: records, refusals, precisions, launching, and a user's own method."""

import sys
from dataclasses import replace

import pytest
import torch

from benchmark.config import identity
from benchmark.launch import run
from benchmark.launch.run import fit
from benchmark.runs.lock import locked
from benchmark.runs.records import read_record, read_rows
from benchmark.runs.states import CHECKPOINT
from datamodules.common.errors import ConfigError, DataError, RunError
from datamodules.digits import Digits
from few_digits import FewDigits
from run_folders import change, completed
from runs import MIXED, ROUNDS, SHORT, configuration, planted


def test_a_run_and_its_record(reference):
    config = configuration(reference.parents[1], **MIXED)
    record, rows = read_record(reference), read_rows(reference)
    assert reference == config.folder and reference.name == f"fed_consist-few_digits.FewDigits-{config.id}"
    assert record["config"] == identity(config.config)
    assert record["seeds"] == {"run": 3, "partition": 1337}
    assert [(row["round"], row.get("warmup", False)) for row in rows] == [(n, n == 0) for n in range(ROUNDS)]
    assert record["bytes_up"] == 92_626 * 4 * (1 + 4 * (ROUNDS - 1))  # in the first round one client trains
    counts = {role: [sum(map(int, line.split())) for line in lines] for role, lines in record["class_counts"].items()}
    (held,), (each,) = map(sum, record["labelled_histogram"]), {*counts["unlabelled"][1:]}
    assert counts == {"labelled": [held, *[0] * 5], "unlabelled": [0, *[each] * 5], "server": []}
    assert held == each == 41  # of 250, and what is left over is nobody's
    patches = {file.name for file in reference.glob("uncommitted-*.patch")}  # of a checkout with changes
    names = {file.name for file in reference.iterdir()}
    assert names - patches == {"config.yaml", "metrics.jsonl", "record.json", "weights.pt", "run.lock"}
    assert not locked(reference)


def test_a_complete_run_is_left_alone(reference, monkeypatch):
    """A second ``fit`` runs nothing and writes nothing; what a kill after the record has left goes."""
    before = {file: file.stat().st_mtime_ns for file in reference.iterdir()}
    config = configuration(reference.parents[1], **MIXED)
    (reference / CHECKPOINT).touch()
    (reference / "states.3").mkdir()
    monkeypatch.setattr(run.Fabric, "launch", lambda *_: pytest.fail("a run was started"))
    assert fit(config) == reference
    assert fit(config.replace(runtime=replace(config.config.runtime, devices=2))) == reference
    assert {file: file.stat().st_mtime_ns for file in reference.iterdir()} == before


def test_a_record_made_under_other_defaults_is_refused(tmp_path):
    config = configuration(tmp_path, **SHORT)
    path = completed(config, 10.0)
    change(path, lambda record: record["config"]["method"]["init_args"].update(momentum=0.5))
    for status in ("complete", "running"):
        change(path, lambda record, status=status: record.update(status=status))
        with pytest.raises(ConfigError, match=r"momentum.*0\.5.*0\.9"):
            fit(config)


def test_a_run_that_other_code_of_the_method_has_made_is_not_shown_in_passing(tmp_path, monkeypatch):
    source = "from methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    more = 0.1\n"
    (tmp_path / "of_today.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = configuration(tmp_path, **{**SHORT, "method": "of_today.Mine"})
    path = completed(config, 10.0)
    assert fit(config) == path
    (tmp_path / "of_today.py").write_text(source.replace("0.1", "0.25"))
    monkeypatch.delitem(sys.modules, "of_today")
    (made,) = read_record(path)["environment"]["revisions"]
    with pytest.warns(UserWarning, match=rf"{made} .* is there now, method 1, .*delete the folder"):
        assert fit(config) == path
    monkeypatch.setattr("of_today.Mine.revision", 2)
    with pytest.raises(ConfigError, match=rf"{made} .* is there now, method 2, .*delete the folder"):
        fit(config)


def test_processes_that_end_without_a_record_are_no_success(tmp_path, monkeypatch):
    """However they ended: with code 0, too."""
    monkeypatch.setattr(run.Fabric, "launch", lambda *_: None)
    with pytest.raises(RunError, match="ended without an error, but the run is not complete; run it again"):
        fit(configuration(tmp_path, runtime__devices=2, **SHORT))


def test_missing_data_is_missed_before_processes_start(tmp_path, monkeypatch):
    def read(self):
        raise DataError("no file: look there")

    mine = planted(monkeypatch, Digits, read=read)
    monkeypatch.setattr(run.Fabric, "launch", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(DataError, match="no file: look there"):
        fit(configuration(tmp_path, runtime__devices=2, **{**SHORT, "data": mine}))


def test_precisions(tmp_path):
    """Each has a run of its own. Weights are double in double precision; 16 bits keep them in single."""
    for precision, kept in (("64-true", torch.float64), ("bf16-mixed", torch.float32)):
        path = fit(configuration(tmp_path, precision=precision, **SHORT))
        assert read_record(path)["environment"]["precision"] == precision
        assert {value.dtype for value in torch.load(path / "weights.pt").values()} == {kept}


def test_a_changed_split_is_not_taken_for_the_old_one(tmp_path):
    """A complete run whose partition file was replaced says so instead of showing the old numbers."""
    file = tmp_path / "split.json"

    def export(seed):
        data = FewDigits(num_clients=4, partition_seed=seed)
        data.setup()
        data.export(str(file))

    export(1)
    options = {**SHORT, "data__partition_file": str(file), "data__num_clients": 4}
    fit(configuration(tmp_path, **options))
    fit(configuration(tmp_path, **options))
    export(2)
    with pytest.raises(ConfigError, match=r"split\.json"):
        fit(configuration(tmp_path, **options))
