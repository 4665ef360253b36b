"""Checkpoints: whatever is killed or damaged, what is loaded was saved whole."""

import errno
import io
import os
import shutil
from collections import OrderedDict
from itertools import product
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import pytest
import torch

from benchmark.federation import checkpoint
from checkpoints import CLIENTS, STATES, Runs, equal, sealed
from datamodules.common.errors import RunError


def names(path):
    """All files of a checkpoint; those of clients without their digests."""
    kept = sorted(file.name.rpartition("-")[0] for file in path.with_name(CLIENTS).glob("*"))
    return sorted(p.name for p in path.parent.iterdir() if p.is_file()), kept


def test_round_trip_and_one_predecessor(path):
    assert checkpoint.load(path) is None
    for number in range(4):
        checkpoint.save(path, STATES[number])
        assert equal(checkpoint.load(path), number)
    heads = ["checkpoint.pt", "checkpoint.pt.previous"]
    assert names(path) == (heads, ["clients-0", "clients-0", "clients-1"])  # 0 has changed since the predecessor
    path.unlink()
    assert equal(checkpoint.load(path), 2)


def flipped(raw, where):
    return raw[:where] + bytes([raw[where] ^ 1]) + raw[where + 1 :]


@pytest.mark.parametrize("where", [0, 30, 60, 1000])
@pytest.mark.parametrize("damage", [lambda raw, where: raw[:where], flipped], ids=["torn", "flipped"])
def test_a_damaged_file_falls_back_to_its_predecessor(two, damage, where):
    """Which stays the predecessor, even if the next save is damaged, too."""
    two.write_bytes(damage(two.read_bytes(), where))
    assert equal(checkpoint.load(two), 0)
    checkpoint.save(two, STATES[2])
    two.write_bytes(damage(two.read_bytes(), where))
    assert equal(checkpoint.load(two), 0)


def test_both_damaged(two):
    for file in (two, checkpoint.previous(two)):
        file.write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"no checkpoint is intact.*pt is damaged.*pt\.previous is damaged.*delete"):
        checkpoint.load(two)


class Killed(BaseException):
    """Stands for SIGKILL at a system call."""


@pytest.mark.parametrize("first", [True, False], ids=["nothing before", "two before"])
def test_a_kill_at_any_step_leaves_an_old_or_the_new_state(path, monkeypatch, first):
    """Every call that touches the disk is where the process dies, before and after it took effect."""
    count = 4 if first else 3  # two clients' files, of which one has changed, and the head
    steps = [f"{name} {nth}" for name in ("open", "fsync", "replace") for nth in range(1, count)]
    steps += [f"replace {count}", *([] if first else ["unlink 1"])]
    outcomes = []
    for step, done in product(steps, (False, True)):
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        if not first:
            checkpoint.save(path, STATES[0])
            checkpoint.save(path, STATES[1])
        name, _, nth = step.partition(" ")
        left = [int(nth or 1)]
        module = {"open": io, "unlink": Path}.get(name, os)
        real = getattr(module, name)

        def dying(*args, real=real, left=left, done=done, **kwargs):
            left[0] -= 1
            if left[0]:
                return real(*args, **kwargs)
            if done:
                real(*args, **kwargs)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(module, name, dying)
            try:
                checkpoint.save(path, STATES[2])
            except Killed:
                outcomes.append(step)
        found = checkpoint.load(path)
        assert (found is None if first else equal(found, 1)) or equal(found, 2)
        checkpoint.save(path, STATES[3])
        assert equal(checkpoint.load(path), 3)
        needed = checkpoint.files_of(path) | checkpoint.files_of(checkpoint.previous(path))
        assert set(os.listdir(path.with_name(CLIENTS))) == needed, "what belongs to no checkpoint has gone"
    assert len(outcomes) == 2 * len(steps) - (2 if first else 0)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_an_error_and_leaves_no_half_file(two, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = io.open

    def on_a_full_disk(path, mode, *args):
        if mode == "rb":
            return opened(path, mode, *args)
        file = opened(path, mode, buffering=0)
        wrapped = type("Full", (), {"__enter__": lambda self: self, "__exit__": lambda *_: file.close()})()
        wrapped.write, wrapped.flush, wrapped.fileno = full, file.flush, file.fileno
        return wrapped

    with monkeypatch.context() as patch:
        if call == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(io, "open", on_a_full_disk)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(two, STATES[2])
    assert names(two) == (["checkpoint.pt", "checkpoint.pt.previous"], ["clients-0", "clients-0", "clients-1"])
    assert equal(checkpoint.load(two), 1)


def test_remove(two):
    other = two.with_name("weights.pt")
    other.write_bytes(b"stays")
    assert two.with_name(CLIENTS).exists()
    checkpoint.remove(two)
    checkpoint.remove(two)
    assert list(two.parent.iterdir()) == [other]


def test_a_prepared_file_runs_nothing(path, tmp_path):
    """Its checksum is right, so that it is intact; it is refused for what it holds, and not replaced in silence."""
    checkpoint.save(path, STATES[0])
    checkpoint.save(path, STATES[1])
    path.write_bytes(sealed({**STATES[2], "extra": Runs(tmp_path / "ran")}))
    with pytest.raises(UnpicklingError, match="mkdir"):
        checkpoint.load(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("value", "kind"), [(np.float64(1), "numpy.float64"), ({1, 2}, "set")])
def test_only_plain_data_is_saved(two, value, kind):
    """What could not be read back is refused when it is written, and said where; the file before stays."""
    with pytest.raises(
        RunError, match=rf"state\['clients'\]\[3\]\[0\] is a .*{kind}.*Keep the value in a registered tensor"
    ):
        checkpoint.save(two, {"clients": {3: (value,)}})
    assert equal(checkpoint.load(two), 1)


def test_parameters_and_ordered_dicts_become_plain(path):
    checkpoint.save(path, {"a": OrderedDict(w=torch.nn.Parameter(torch.ones(2))), "b": (None, True, 2, 0.5, "x", [1])})
    found = checkpoint.load(path)
    assert type(found["a"]) is dict and type(found["a"]["w"]) is torch.Tensor and not found["a"]["w"].requires_grad
    assert found["b"] == (None, True, 2, 0.5, "x", [1])
