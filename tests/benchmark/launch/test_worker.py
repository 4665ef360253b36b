"""A run in one process: failures, the end of the run, and folders that another process holds."""

import errno
import os
import signal
from dataclasses import replace

import pytest

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.loop import Federation
from benchmark.launch import run
from benchmark.launch.recorder import CHECKPOINT, Recorder
from benchmark.launch.run import fit
from benchmark.launch.worker import data_provenance
from benchmark.runs.folder import RunFolder
from benchmark.runs.lock import RunLocked, run_lock
from benchmark.runs.records import read_record
from benchmark.runs.states import state
from datamodules.common.errors import RunError, Stopped
from datamodules.digits import Digits
from run_folders import RUN, row
from runs import MIXED, ROUNDS, SHORT, assert_same_run, configuration, interrupted, planted


def test_a_failure_is_recorded_and_the_run_can_be_taken_up_again(tmp_path, reference, capsys):
    """After an error in the middle the same call finishes the run, as if nothing had happened."""
    config = configuration(tmp_path, **MIXED)
    path = interrupted(config, 4)
    record = read_record(path)
    assert record["status"] == state(path) == "failed"
    assert "no space left on device" in record["error"]
    assert record["rounds"] == {"done": 4, "total": ROUNDS}
    assert "continues after" not in capsys.readouterr().err
    assert_same_run(fit(config), reference)
    assert f"{path}: continues after 4 of {ROUNDS} rounds\n" in capsys.readouterr().err


def test_an_end_that_fails_loses_nothing(tmp_path, reference, monkeypatch):
    """A kill between the last round and the record, then a disk that is full when the weights are written."""
    config, fsync = configuration(tmp_path, **MIXED), os.fsync

    def killed(self):
        raise KeyboardInterrupt

    def full(handle):
        if "weights" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Federation, "evaluate_averaged", killed)
        fit(config)
    assert Checkpoint(config.folder / CHECKPOINT).load()["round"] == ROUNDS
    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left.*/weights\.pt'"):
        patch.setattr(os, "fsync", full)
        fit(config)
    assert not list(config.folder.glob("*weights*"))
    assert_same_run(fit(config), reference)


def test_a_stop_is_no_failure_where_the_last_rounds_cannot_be_saved(tmp_path, reference, monkeypatch, capsys):
    """The run ends as it was asked to, says what is lost, and goes on from its checkpoint."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    whole = Federation.run_round

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    def stopped(self, number):
        if number == 3:
            patch.setattr(Recorder, "save", full)
            raise Stopped(signal.SIGTERM)
        return whole(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "run_round", stopped)
        with pytest.raises(Stopped):
            fit(config)
    assert "the last rounds could not be saved: [Errno 28] No space left on device" in capsys.readouterr().err
    assert_same_run(fit(config), reference)


def test_a_data_set_that_ends_the_program_is_an_error(tmp_path, monkeypatch):
    def read(self):
        raise SystemExit(0)

    config = configuration(tmp_path, **{**SHORT, "data": planted(monkeypatch, Digits, read=read)})
    with pytest.raises(RunError, match="the method or the data set raised SystemExit: 0"):
        fit(config)
    assert state(config.folder) == "failed"


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
def test_a_run_that_another_process_completes_meanwhile_is_left_alone(tmp_path, monkeypatch, quick_processes):
    """Between the look at its record and the lock."""
    config = configuration(tmp_path, **SHORT)
    launch, before = run.Fabric.launch, {}

    def late(self, *args):
        monkeypatch.setattr(run.Fabric, "launch", launch)
        before.update({file: file.stat().st_mtime_ns for file in fit(config).iterdir() if file.name != "run.lock"})
        return launch(self, *args)

    monkeypatch.setattr(run.Fabric, "launch", late)
    fit(config.replace(runtime=replace(config.config.runtime, devices=2)))
    assert before and {file: file.stat().st_mtime_ns for file in before} == before


def test_a_warm_up_that_never_ends_is_said(tmp_path, capsys):
    """The line at the start of a run warns."""
    fit(configuration(tmp_path, method="cbafed", rounds=1))
    assert "ALL 1 rounds lie within the warm-up of 501" in capsys.readouterr().err


def test_a_record_counts_images_but_not_those_of_very_many_clients(tmp_path):
    """What is held out is what is tested on. A run of very many clients completes all the same."""
    data = Digits(num_clients=8, labelled_clients=3, beta=0.5, labelled_pick="index0", balanced_holdout=50)
    data.setup()
    told = data_provenance(data, most_listed=8)
    assert len(told["class_counts"]["unlabelled"]) == 8 and told["test_images"] == 50
    facts = data_provenance(data, most_listed=7)
    assert not {"class_counts", "labelled_histogram"} & facts.keys()
    folder = RunFolder(tmp_path)
    folder.open(RUN, facts)
    for number in range(RUN.config.rounds):
        folder.append(row(number))
    folder.finish()
    assert read_record(tmp_path)["status"] == "complete"
