"""What a run writes while it goes on: rows, checkpoints, weights; and what it saves when it is stopped."""

import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from benchmark.federation import checkpoint
from benchmark.federation.loop import Federation
from benchmark.launch.recorder import CHECKPOINT, Recorder
from benchmark.launch.run import fit
from benchmark.runs.states import saved_rounds
from datamodules.common.errors import Stopped
from runs import MIXED, ROUNDS, SHORT, assert_same_run, configuration


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


def test_a_disk_that_is_full_when_a_checkpoint_is_written(tmp_path, reference, monkeypatch):
    """The error names the file, the checkpoint before stays, and the run goes on from it once there is room."""
    config = configuration(tmp_path, runtime__checkpoint_every_s=0, **MIXED)
    path, fsync, written = config.folder, os.fsync, []

    def full(handle):
        written.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.startswith(".clients-4-"))
        if sum(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as error:
            fit(config)
    assert Path(error.value.filename).name.startswith("clients-4-")
    assert 0 < checkpoint.load(path / CHECKPOINT)["round"] == saved_rounds(path) < ROUNDS
    assert not list(path.rglob("*.tmp"))
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
