"""Checkpoints: whatever is killed or damaged, what is loaded was saved whole; a save writes what has changed."""

import hashlib
import io
import os
import shutil
from collections import OrderedDict
from itertools import pairwise, product
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmark.contract.attributes import same
from benchmark.federation import checkpoint
from benchmark.federation.checkpoint import Checkpoint
from datamodules.common.errors import RunError

CLIENTS = "checkpoint.clients"


def made(number, clients=(0,)):
    """A state after some rounds; ``clients`` says in which of them each client took part last."""
    return {
        "round": number,
        "w": torch.full((1000,), float(number)),
        "nested": {"a": [(number, torch.tensor(number))]},
        "changed": {"clients": dict(enumerate(clients))},
        "clients": {c: ({"own": torch.full((10,), float(last))}, [[{"step": last}]]) for c, last in enumerate(clients)},
        "memory": {7: {}},
    }


STATES = [made(number, (number, 0)) for number in range(4)]


def equal(found, number):
    """Whether this is the state after so many rounds; what had changed in a round may be kept in any form."""
    return found is not None and same({**found, "changed": None}, {**STATES[number], "changed": None})


class Runs:
    """Unpickled, it runs code of whoever wrote the file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def saved(content):
    """A file of ``torch``, as bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def sealed(content, magic=checkpoint.MAGIC):
    """The file of a head whose checksum is right, whatever it holds."""
    body = saved(content)
    return magic + hashlib.sha256(body).digest() + body


@pytest.fixture
def path(tmp_path):
    """Where a checkpoint lies."""
    return tmp_path / "checkpoint.pt"


def save(path, state):
    """Write all of a state, as a process does that knows of clients' files from the heads alone."""
    once = Checkpoint(path)
    once.files, once.previous_files = checkpoint.files_of(path), checkpoint.files_of(checkpoint.previous(path))
    once.save(state)


def load(path):
    return Checkpoint(path).load()


def test_a_head_names_no_file_elsewhere(path):
    """What is no longer needed is deleted, and anybody can write a head."""
    path.write_bytes(sealed({"kept": {"clients": {0: "0-a", 1: "/home/me/thesis", 2: "../1-b"}}}))
    assert checkpoint.files_of(path) == {"0-a"}


@pytest.fixture
def two(path):
    """Two checkpoints: 0 became the predecessor of 1."""
    for number in (0, 1):
        save(path, STATES[number])
    return path


def test_round_trip_and_one_predecessor(path):
    assert load(path) is None
    for number in range(4):
        save(path, STATES[number])
        assert equal(load(path), number)
    assert sorted(file.name for file in path.parent.iterdir()) == [CLIENTS, "checkpoint.pt", "checkpoint.pt.previous"]
    kept = sorted(file.name.rpartition("-")[0] for file in path.with_name(CLIENTS).iterdir())
    assert kept == ["clients-0", "clients-0", "clients-1"]  # 0 has changed since the predecessor
    path.unlink()
    assert equal(load(path), 2)


def flipped(raw, where):
    return raw[:where] + bytes([raw[where] ^ 1]) + raw[where + 1 :]


@pytest.mark.parametrize("where", [0, 30, 60, 1000])
@pytest.mark.parametrize("damage", [lambda raw, where: raw[:where], flipped], ids=["torn", "flipped"])
def test_a_damaged_file_falls_back_to_its_predecessor(two, damage, where):
    """Which stays the predecessor, even if the next save is damaged, too."""
    two.write_bytes(damage(two.read_bytes(), where))
    assert equal(load(two), 0)
    save(two, STATES[2])
    two.write_bytes(damage(two.read_bytes(), where))
    assert equal(load(two), 0)


def test_both_damaged(two):
    for file in (two, checkpoint.previous(two)):
        file.write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"no checkpoint is intact.*pt is damaged.*pt\.previous is damaged.*delete"):
        load(two)


def client_file(path, client):
    """The newest file of a client."""
    return max(path.with_name(CLIENTS).glob(f"clients-{client}-*"), key=lambda file: file.stat().st_mtime_ns)


def flip(file):
    file.write_bytes(flipped(file.read_bytes(), 1000))


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "missing"])
def test_a_damaged_file_of_a_client_falls_back_to_the_predecessor(two, damage):
    damage(client_file(two, 0))
    assert equal(load(two), 0)
    save(two, STATES[2])
    assert equal(load(two), 2)


def test_a_file_of_a_client_that_both_need_is_named(two):
    """Client 1 has not changed, so that both checkpoints have the same file."""
    file = client_file(two, 1)
    file.unlink()
    with pytest.raises(RunError, match=rf"{CLIENTS}/{file.name}: No such file"):
        load(two)


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
            save(path, STATES[0])
            save(path, STATES[1])
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
                save(path, STATES[2])
            except Killed:
                outcomes.append(step)
        found = load(path)
        assert (found is None if first else equal(found, 1)) or equal(found, 2)
        save(path, STATES[3])
        assert equal(load(path), 3)
        needed = checkpoint.files_of(path) | checkpoint.files_of(checkpoint.previous(path))
        assert set(os.listdir(path.with_name(CLIENTS))) == needed, "what belongs to no checkpoint has gone"
    assert len(outcomes) == 2 * len(steps) - (2 if first else 0)


def test_a_prepared_file_runs_nothing(path, tmp_path):
    """Its checksum is right, so that it is intact; it is refused for what it holds, and not replaced in silence."""
    save(path, STATES[0])
    save(path, STATES[1])
    path.write_bytes(sealed({**STATES[2], "extra": Runs(tmp_path / "ran")}))
    with pytest.raises(UnpicklingError, match="mkdir"):
        load(path)
    assert not (tmp_path / "ran").exists()


def test_only_plain_data_is_saved(two):
    """Tensors are detached. What could not be read back is refused, with its place; the file before stays."""
    with pytest.raises(RunError, match=r"state\['clients'\]\[3\]\[0\] is a numpy.float64.*in a registered tensor"):
        save(two, {"clients": {3: (np.float64(1),)}})
    assert equal(load(two), 1)
    save(two, {"a": OrderedDict(w=torch.nn.Parameter(torch.ones(2))), "b": (None, True, 2, 0.5, "x", [1])})
    found = load(two)
    assert type(found["a"]) is dict and type(found["a"]["w"]) is torch.Tensor and not found["a"]["w"].requires_grad
    assert found["b"] == (None, True, 2, 0.5, "x", [1])


def test_only_what_has_changed_is_written(path):
    """Also by a run that continues."""

    def files():
        return {file: file.stat().st_mtime_ns for file in path.with_name(CLIENTS).iterdir()}

    kept = Checkpoint(path)
    kept.save(made(1, (1, 1, 1)))
    before = files()
    kept.save(made(2, (1, 2, 1)))
    after = files()
    assert before.items() <= after.items() and len(after) == len(before) + 1
    assert [float(load(path)["clients"][c][0]["own"][0]) for c in range(3)] == [1.0, 2.0, 1.0]
    continued = Checkpoint(path)
    continued.save({**continued.load(), "round": 3})
    assert files().items() <= after.items() and load(path)["round"] == 3


def test_saving_costs_a_fiftieth_of_the_time(path, monkeypatch):
    """Whatever the disk takes: saves are as rare as need be, and never rarer than that."""
    clock, saves = SimpleNamespace(now=0.0), []

    def fsync(handle):
        clock.now += 2.5

    monkeypatch.setattr(os, "fsync", fsync)
    kept, always = Checkpoint(path, 60.0, lambda: clock.now), Checkpoint(path, 0.0, lambda: clock.now)
    for number in range(200):
        clock.now += 10.0
        if kept.due():
            saves.append(clock.now)
            kept.save(made(number, (number,)))
        assert always.due()
    gaps = [b - a for a, b in pairwise(saves)]
    assert saves[0] == 60.0 and min(gaps) >= 250 and max(gaps) <= 270  # two files a save
