"""A run in one process: errors of any kind, other data, and folders that another process holds."""

import asyncio
import os
from dataclasses import replace

import pytest

from benchmark.federation import checkpoint
from benchmark.federation.loop import Federation
from benchmark.launch import run
from benchmark.launch.recorder import CHECKPOINT
from benchmark.launch.run import fit
from benchmark.launch.worker import data_provenance
from benchmark.runs.lock import RunLocked, run_lock
from benchmark.runs.records import read_record, read_rows, without_clock
from benchmark.runs.states import state
from datamodules.common.errors import RunError
from datamodules.digits import Digits
from methods.fedavg import FedAvg
from run_folders import change
from runs import MIXED, ROUNDS, SHORT, assert_same_run, configuration, interrupted, planted


def test_a_failure_is_recorded_and_the_run_can_be_taken_up_again(tmp_path, reference, capsys):
    """After an error in the middle the same call finishes the run, as if nothing had happened."""
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 4)
    record = read_record(path)
    assert record["status"] == state(path) == "failed"
    assert "no space left on device" in record["error"]
    assert record["rounds"] == {"done": 4, "total": ROUNDS}
    assert "continues from" not in capsys.readouterr().err
    assert_same_run(fit(config), reference)
    assert f"{path}: continues from round 5 of {ROUNDS}\n" in capsys.readouterr().err


def test_an_averaged_model_changes_no_row_and_outlives_a_kill_at_the_end(tmp_path, reference, monkeypatch):
    """``reference`` averages six of its eight rounds. A kill between the last round and the record loses nothing."""
    config = configuration(tmp_path, **MIXED)

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Federation, "evaluate_averaged", killed)
        fit(config)
    assert checkpoint.load(config.folder / CHECKPOINT)["round"] == ROUNDS
    assert_same_run(fit(config), reference)
    plain = fit(configuration(tmp_path, **{**MIXED, "average_last": 0}))
    assert without_clock(read_rows(plain)) == without_clock(read_rows(reference))
    ours, theirs = read_record(plain), read_record(reference)
    assert "averaged" not in ours and theirs["averaged"]["rounds"] == 6
    assert all(ours[name] == theirs[name] for name in ("final", "best", "last_k_mean", "partition_hash", "bytes_up"))


def test_other_data_is_refused_however_often_one_tries(tmp_path):
    """The refusal must not forget the hashes that it is based on."""
    config = configuration(tmp_path, **SHORT)
    path = interrupted(config, 1)
    ours = read_record(path)["partition_hash"]
    change(path, lambda record: record.update(partition_hash="another"))
    for _ in range(3):
        with pytest.raises(RunError, match="partition_hash"):
            fit(config)
    assert read_record(path)["partition_hash"] == "another"
    change(path, lambda record: record.update(partition_hash=ours))
    fit(config)
    assert state(path) == "complete"


@pytest.mark.parametrize("ends", [SystemExit(0), asyncio.CancelledError("by nobody")], ids=lambda e: type(e).__name__)
def test_a_data_set_that_ends_the_program_is_an_error(tmp_path, monkeypatch, ends):
    """Whatever it does that is no ordinary error."""

    def read(self):
        raise ends

    config = configuration(tmp_path, **{**SHORT, "data": planted(monkeypatch, Digits, read=read)})
    with pytest.raises(RunError, match=f"the method or the data set raised {type(ends).__name__}: {ends}"):
        fit(config)
    assert state(config.folder) == "failed"


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), Mute()], ids=lambda e: type(e).__name__)
def test_a_method_that_raises_anything_has_failed(tmp_path, monkeypatch, error):
    """Its record says so, with the traceback."""

    def raises(self, *args):
        raise error

    mine = planted(monkeypatch, FedAvg, training_step=raises)
    config = configuration(tmp_path, **{**SHORT, "method": mine})
    with pytest.raises(RunError, match=rf"^Mine, client 0 .*, round 0: {type(error).__name__}: "):
        fit(config)
    record = read_record(config.folder)
    assert record["status"] == "failed" and "in raises" in record["error"]


def test_a_run_in_progress_is_left_alone(tmp_path):
    """Whoever holds the folder keeps it, and its record stays as it is."""
    config = configuration(tmp_path, **SHORT)
    path = config.folder
    with run_lock(path):
        with pytest.raises(RunLocked, match=f"process {os.getpid()} on"):
            fit(config)
        assert not (path / "record.json").exists()
    assert state(fit(config)) == "complete"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_that_another_process_completes_meanwhile_is_left_alone(tmp_path, monkeypatch, quick_processes, devices):
    """Between the look at its record and the lock."""
    config = configuration(tmp_path, **SHORT)
    launch, done = run.Fabric.launch, {}

    def files(path):
        kept = [file for file in path.rglob("*") if file.is_file() and file.name != "run.lock"]
        return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in kept}

    def late(self, *args):
        monkeypatch.setattr(run.Fabric, "launch", launch)
        done.update(files(fit(config)))
        return launch(self, *args)

    monkeypatch.setattr(run.Fabric, "launch", late)
    assert files(fit(config.replace(runtime=replace(config.config.runtime, devices=devices)))) == done


def test_states_that_killed_processes_have_left_are_removed(tmp_path):
    """Those of more processes than there are now, too, and those of a run that was killed after its record."""
    config = configuration(tmp_path, **SHORT)
    for rank in (3, 0):
        left = config.folder / f"states.{rank}"
        left.mkdir(parents=True)
        (left / "1.pt").write_bytes(b"old")
        fit(config)
        assert state(config.folder) == "complete" and not left.exists()


def test_a_warm_up_that_never_ends_is_said(tmp_path, capsys):
    """The line at the start of a run warns."""
    fit(configuration(tmp_path, method="cbafed", rounds=1))
    assert "ALL 1 rounds lie within the warm-up of 501" in capsys.readouterr().err


def test_a_record_counts_images_but_not_those_of_very_many_clients():
    """What is held out is what is tested on."""
    data = Digits(num_clients=8, labelled_clients=3, beta=0.5, labelled_pick="index0", balanced_holdout=50)
    data.setup()
    told = data_provenance(data, most_listed=8)
    assert len(told["class_counts"]["unlabelled"]) == 8 and told["test_images"] == 50
    assert not {"class_counts", "labelled_histogram"} & data_provenance(data, most_listed=7).keys()
