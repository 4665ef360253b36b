"""What a run writes while it goes on: rows, checkpoints, weights; and what it saves when it is stopped."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from benchmark.federation import checkpoint
from benchmark.federation.loop import Federation
from benchmark.launch.recorder import CHECKPOINT, Recorder
from benchmark.launch.run import fit
from benchmark.runs.states import saved_rounds, state
from datamodules.common.errors import RunError, Stopped
from methods.fedavg import FedAvg
from runs import MIXED, ROUNDS, SHORT, assert_same_run, configuration, planted


def test_rows_that_change_while_a_run_goes_on_are_not_sealed(tmp_path, monkeypatch):
    def changes(self, round, roster):
        if round == 1:
            file.write_text(json.dumps({**json.loads(file.read_text()), "acc": 99.0}) + "\n")
        return FedAvg.select_clients(self, round, roster)

    mine = planted(monkeypatch, FedAvg, select_clients=changes)
    config = configuration(tmp_path, **{**SHORT, "method": mine})
    file = config.folder / "metrics.jsonl"
    with pytest.raises(RunError, match=r"metrics\.jsonl: the rows are not those that the run wrote; restore the"):
        fit(config)
    assert state(config.folder) == "failed"


def test_weights_are_there_whole_or_not_at_all(tmp_path, monkeypatch):
    config = configuration(tmp_path, **SHORT)
    replaced = os.replace

    def full(source, target):
        if Path(target).name == "weights.pt":
            raise OSError("no space left on device")
        replaced(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            fit(config)
    assert not (config.folder / "weights.pt").exists()
    assert torch.load(fit(config) / "weights.pt")


@pytest.mark.parametrize("name", ["clients-4-", "checkpoint.pt"])
def test_a_disk_that_is_full_when_a_checkpoint_is_written(tmp_path, reference, monkeypatch, name):
    """The error names the file, the checkpoint before stays, and the run goes on from it once there is room."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    path, fsync, written = config.folder, os.fsync, []

    def full(handle):
        written.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.startswith(f".{name}"))
        if sum(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as error:
            fit(config)
    assert Path(error.value.filename).name.startswith(name)
    assert 0 < checkpoint.load(path / CHECKPOINT)["round"] == saved_rounds(path) < ROUNDS
    assert not list(path.rglob("*.tmp"))
    assert_same_run(fit(config), reference)


def test_a_stop_is_no_failure_where_the_last_rounds_cannot_be_saved(tmp_path, reference, monkeypatch, capsys):
    """The run ends as it was asked to, says what is lost, and goes on from its checkpoint."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    whole, save = Federation.run_round, Recorder.save

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
    assert Recorder.save is save
    assert_same_run(fit(config), reference)
