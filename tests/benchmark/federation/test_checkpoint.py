"""Checkpoints: whatever is killed or damaged, what is loaded was saved whole; what has not changed is not written."""

import builtins
import errno
import hashlib
import io
import os
import shutil
import weakref
from collections import OrderedDict
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmark.federation import checkpoint
from datamodules.common.errors import RunError

CLIENTS = "checkpoint.clients"


def made(number, clients=(0,)):
    """A state after some rounds; ``clients`` says in which of them each client took part last."""
    return {
        "round": number,
        "w": torch.full((1000,), float(number)),
        "nested": {"a": [(number, torch.tensor(number))]},
        "clients": {c: ({"own": torch.full((10,), float(last))}, [[{"step": last}]]) for c, last in enumerate(clients)},
        "memory": {7: {}},
    }


STATES = [made(number, (number, 0)) for number in range(4)]


def equal(found, number):
    expected = STATES[number]
    return (
        found is not None
        and list(found) == list(expected)
        and found["round"] == number
        and torch.equal(found["w"], expected["w"])
        and torch.equal(found["nested"]["a"][0][1], torch.tensor(number))
        and [torch.equal(found["clients"][c][0]["own"], v[0]["own"]) for c, v in expected["clients"].items()]
        == [True] * 2
        and [found["clients"][c][1] for c in (0, 1)] == [[[{"step": number}]], [[{"step": 0}]]]
        and found["memory"] == {7: {}}
    )


def names(path):
    """All files of a checkpoint; those of clients without their digests."""
    kept = sorted(file.name.rpartition("-")[0] for file in path.with_name(CLIENTS).glob("*"))
    return sorted(p.name for p in path.parent.iterdir() if p.is_file()), kept


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


@pytest.fixture
def two(path):
    """Two checkpoints: 0 became the predecessor of 1."""
    for number in (0, 1):
        checkpoint.save(path, STATES[number])
    return path


def test_round_trip_and_one_predecessor(path):
    assert checkpoint.load(path) is None
    for number in range(4):
        checkpoint.save(path, STATES[number])
        assert equal(checkpoint.load(path), number)
    heads = ["checkpoint.pt", "checkpoint.pt.previous"]
    assert names(path) == (heads, ["clients-0", "clients-0", "clients-1"])  # 0 has changed since the predecessor
    path.unlink()
    assert equal(checkpoint.load(path), 2)


@pytest.mark.parametrize("keep", [0, 10, 40, 60, 1000, -1])
def test_a_torn_file_falls_back_to_its_predecessor(two, keep):
    two.write_bytes(two.read_bytes()[:keep])
    assert equal(checkpoint.load(two), 0)


@pytest.mark.parametrize("where", [0, 30, 60, 2000, -1])
def test_one_flipped_bit_is_noticed(two, where):
    raw = bytearray(two.read_bytes())
    raw[where] ^= 1
    two.write_bytes(raw)
    assert equal(checkpoint.load(two), 0)


def test_an_intact_predecessor_outlives_the_damaged_file(two):
    """Even if the next save is torn, too."""
    two.write_bytes(b"damaged")
    assert equal(checkpoint.load(two), 0)
    checkpoint.save(two, STATES[2])
    two.write_bytes(b"damaged again")
    assert equal(checkpoint.load(two), 0)


def test_both_damaged(two):
    for file in (two, checkpoint.previous(two)):
        file.write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"no checkpoint is intact.*pt is damaged.*pt\.previous is damaged.*delete"):
        checkpoint.load(two)


def test_saving_over_a_damaged_file(two):
    two.write_bytes(b"")
    checkpoint.save(two, STATES[2])
    assert equal(checkpoint.load(two), 2)


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
        module = {"open": builtins, "unlink": Path}.get(name, os)
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
        needed = checkpoint._files_of(path) | checkpoint._files_of(checkpoint.previous(path))
        assert set(os.listdir(path.with_name(CLIENTS))) == needed, "what belongs to no checkpoint has gone"
    assert len(outcomes) == 2 * len(steps) - (2 if first else 0)


def test_the_file_is_complete_before_it_gets_its_name(path, monkeypatch):
    """The rename happens after fsync of the very bytes that were written."""
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(("fsync", os.fstat(fd).st_size)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(("replace", b)), replace(a, b)))
    checkpoint.save(path, STATES[0])
    assert order[-2:] == [("fsync", path.stat().st_size), ("replace", path)]
    assert [what for what, _ in order] == ["fsync", "replace"] * 3


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_an_error_and_leaves_no_half_file(two, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = open

    def on_a_full_disk(path, mode, **more):
        if mode == "rb":
            return opened(path, mode, **more)
        file = opened(path, mode, buffering=0, **more)
        wrapped = type("Full", (), {"__enter__": lambda self: self, "__exit__": lambda *_: file.close()})()
        wrapped.write, wrapped.flush, wrapped.fileno = full, file.flush, file.fileno
        return wrapped

    with monkeypatch.context() as patch:
        if call == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr("builtins.open", on_a_full_disk)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(two, STATES[2])
    assert names(two) == (["checkpoint.pt", "checkpoint.pt.previous"], ["clients-0", "clients-0", "clients-1"])
    assert equal(checkpoint.load(two), 1)


def test_a_plain_file_is_written_whole_or_not_at_all(path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint.save_plain(path, {"w": torch.ones(3)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save_plain(path, {"w": torch.zeros(3)})
    assert list(path.parent.iterdir()) == [path]
    assert torch.load(path)["w"].tolist() == [1.0, 1.0, 1.0]


def test_tensors_are_saved_by_value_and_load_on_the_cpu(path):
    weights = torch.arange(6.0)
    checkpoint.save(path, {"view": weights[2:4]})
    weights.zero_()
    assert checkpoint.load(path)["view"].tolist() == [2.0, 3.0]


def test_remove(two):
    two.with_name("checkpoint.pt.tmp").write_bytes(b"half")
    other = two.with_name("weights.pt")
    other.write_bytes(b"stays")
    assert two.with_name(CLIENTS).exists()
    checkpoint.remove(two)
    checkpoint.remove(two)
    assert list(two.parent.iterdir()) == [other]


def test_in_a_read_only_folder_checkpoints_stay(two, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    checkpoint.remove(two)
    assert equal(checkpoint.load(two), 1)


class Runs:
    """Unpickled, it runs code of whoever wrote the file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_prepared_file_runs_nothing(path, tmp_path):
    """Its checksum is right, so that it is intact; it is refused for what it holds, and not replaced in silence."""
    checkpoint.save(path, STATES[0])
    checkpoint.save(path, STATES[1])
    buffer = io.BytesIO()
    torch.save({**STATES[2], "extra": Runs(tmp_path / "ran")}, buffer)
    body = buffer.getvalue()
    path.write_bytes(checkpoint.MAGIC + hashlib.sha256(body).digest() + body)
    with pytest.raises(RunError, match=r"checkpoint\.pt: this checkpoint holds more than tensors and plain data"):
        checkpoint.load(path)
    assert not (tmp_path / "ran").exists()


def test_a_file_of_an_older_version_is_read(path):
    """Versions before wrote the same plain data, and did not check it."""
    buffer = io.BytesIO()
    torch.save(STATES[2], buffer)
    body = buffer.getvalue()
    path.write_bytes(checkpoint.WHOLE + hashlib.sha256(body).digest() + body)
    assert equal(checkpoint.load(path), 2)
    checkpoint.save(path, STATES[3])
    assert equal(checkpoint.load(path), 3)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(1), "numpy.float64"),
        (np.zeros(2), "numpy.ndarray"),
        (Path("x"), "Posix"),
        ({1, 2}, "set"),
        (len, "builtin"),
    ],
)
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


# --- what each client keeps


def client_file(path, client, which=-1):
    """The file of a client, the newest by default."""
    found = sorted(path.with_name(CLIENTS).glob(f"clients-{client}-*"), key=lambda file: file.stat().st_mtime_ns)
    return found[which]


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing", "folder"])
def test_a_damaged_file_of_a_client_falls_back_to_the_predecessor(two, damage):
    file = client_file(two, 0)
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "flipped":
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    else:
        file.unlink()
        if damage == "folder":
            file.mkdir()
    assert equal(checkpoint.load(two), 0)
    checkpoint.save(two, STATES[2])
    assert equal(checkpoint.load(two), 2)


def test_a_file_that_both_need_is_named(two):
    """Client 1 has not changed, so that both checkpoints have the same file."""
    file = client_file(two, 1)
    file.unlink()
    with pytest.raises(RunError, match=rf"no checkpoint is intact \({CLIENTS}/{file.name}: No such file.*delete"):
        checkpoint.load(two)


def test_only_what_has_changed_is_written(path):
    kept = checkpoint.Checkpoint(path)
    state = made(1, (1, 1, 1))
    kept.save(state)
    before = {file: file.stat().st_mtime_ns for file in path.with_name(CLIENTS).iterdir()}
    state = {**made(2), "clients": {**state["clients"], 1: made(2, (2, 2))["clients"][1]}}
    assert kept.changed_bytes(state) == 1000 * 4 + 8 + 10 * 4
    kept.save(state)
    after = {file: file.stat().st_mtime_ns for file in path.with_name(CLIENTS).iterdir()}
    assert before.items() <= after.items() and len(after) == len(before) + 1
    assert [float(checkpoint.load(path)["clients"][c][0]["own"][0]) for c in range(3)] == [1.0, 2.0, 1.0]


def test_a_change_in_place_is_a_change(path):
    kept, state = checkpoint.Checkpoint(path), made(1)
    kept.save(state)
    state["clients"][0][0]["own"].add_(1)
    kept.save(state)
    assert checkpoint.load(path)["clients"][0][0]["own"].tolist() == [1.0] * 10


def test_what_clients_no_longer_keep_takes_no_memory(path):
    """Between two saves all clients may have taken new tensors."""
    kept, state = checkpoint.Checkpoint(path), made(1, (1, 1))
    kept.save(state)
    old = weakref.ref(state["clients"][1][0]["own"])
    state["clients"][1][0]["own"] = torch.full((10,), 2.0)
    assert old() is None
    assert kept.changed_bytes(state) == 1000 * 4 + 8 + 10 * 4


def test_a_run_that_continues_writes_nothing_that_is_there(two):
    kept = checkpoint.Checkpoint(two)
    state = kept.load()
    copied = {**state, "clients": {c: ({"own": v[0]["own"].clone()}, v[1]) for c, v in state["clients"].items()}}
    kept.taken_up(copied)  # as on a GPU, where the tensors are others
    assert kept.changed_bytes(copied) == 1000 * 4 + 8
    kept.save({**copied, "round": 2})
    assert checkpoint.load(two)["round"] == 2


def test_a_head_names_no_file_elsewhere(path, tmp_path):
    checkpoint.save(path, STATES[0])
    raw = path.read_bytes()[len(checkpoint.MAGIC) + 32 :]
    head = torch.load(io.BytesIO(raw), weights_only=True)
    head["kept"]["clients"][0] = "../../secret.pt"
    buffer = io.BytesIO()
    torch.save(head, buffer)
    path.write_bytes(checkpoint.MAGIC + hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    with pytest.raises(RunError, match="is not the name of a client's file"):
        checkpoint.load(path)


def test_a_file_of_a_client_that_was_prepared_runs_nothing(path, tmp_path):
    """Neither head nor name is wrong: it is refused for what it holds."""
    checkpoint.save(path, STATES[0])
    buffer = io.BytesIO()
    torch.save(Runs(tmp_path / "ran"), buffer)
    name = f"clients-0-{hashlib.sha256(buffer.getvalue()).hexdigest()}.pt"
    (path.with_name(CLIENTS) / name).write_bytes(buffer.getvalue())
    head = torch.load(io.BytesIO(path.read_bytes()[len(checkpoint.MAGIC) + 32 :]), weights_only=True)
    head["kept"]["clients"][0] = name
    buffer = io.BytesIO()
    torch.save(head, buffer)
    path.write_bytes(checkpoint.MAGIC + hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    with pytest.raises(RunError, match=f"{name}: this checkpoint holds more than tensors and plain data"):
        checkpoint.load(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "head",
    [
        [1, 2],
        {5: 6},
        {"kept": None},
        {"kept": {"clients": {0: 5}}, "clients": {}},
        {"kept": {"clients": {"0": ""}}, "clients": {"0": 1}},
        {"kept": {"models": {}}, "models": {}},
        {"kept": {"clients": {0: ""}}, "clients": {}},
        {"kept": {"clients": {0: "../x.pt"}}, "clients": {}},
    ],
)
def test_a_head_of_another_form_is_damaged(path, two, head):
    """Although its checksum is right: the predecessor serves, and without one it is an error that names the head."""
    buffer = io.BytesIO()
    torch.save(head, buffer)
    raw = checkpoint.MAGIC + hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()
    two.write_bytes(raw)
    assert equal(checkpoint.load(two), 0)
    checkpoint.remove(path)
    path.write_bytes(raw)
    with pytest.raises(RunError, match=r"no checkpoint is intact \(.+\); delete checkpoint\.pt"):
        checkpoint.load(path)


def test_a_read_only_folder_is_named(path, monkeypatch):
    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(OSError, match="Read-only") as error:
        checkpoint.save(path, STATES[0])
    assert error.value.filename.startswith(str(path.with_name(CLIENTS)))


@pytest.mark.parametrize("most", [1, 40, 80, 10**9])
def test_divided_and_joined(most):
    state = made(3, (1, 2, 3))
    parts = checkpoint.divided(state, most)
    assert len(parts) == 1 + {1: 4, 40: 3, 80: 2, 10**9: 1}[most]
    assert repr(checkpoint.joined(parts)) == repr(state)


# --- how often


BIG = torch.empty(250_000_000, device="meta")


class Clock:
    """Time that goes by when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_saving_costs_a_fiftieth_of_the_time(path, monkeypatch):
    """Whatever the disk takes: saves are as rare as need be, and never rarer than that."""
    clock = Clock()
    kept = checkpoint.Checkpoint(path, every_s=60.0, clock=clock)
    staged = checkpoint._staged

    def slow(target, *parts):
        clock.now += 2.5
        return staged(target, *parts)

    monkeypatch.setattr(checkpoint, "_staged", slow)
    saves = []
    for number in range(2000):
        clock.now += 10.0
        state = made(number, (number,))
        if kept.due(state):
            saves.append(clock.now)
            kept.save(state)
        assert kept.spent <= 0.02 * clock.now or len(saves) == 1  # of the first one nothing was known
    gaps = [b - a for a, b in pairwise(saves)]
    assert saves[0] == 60.0 and min(gaps[1:]) >= 240 and max(gaps[1:]) <= 270
    assert 0.018 < kept.spent / clock.now <= 0.02


def test_the_first_save_of_a_large_state_waits_until_it_is_paid_for(path):
    clock = Clock()
    kept = checkpoint.Checkpoint(path, every_s=60.0, clock=clock)
    state = {**made(1), "w": torch.empty(0).expand(0), "clients": {c: ({"own": BIG}, []) for c in range(8)}}
    for at, due in ((60.0, False), (8e9 / 1e8 / 0.02 - 1, False), (8e9 / 1e8 / 0.02 + 1, True)):
        clock.now = at
        assert kept.due(state) is due


def test_the_least_interval(path):
    clock = Clock()
    always, minute = (checkpoint.Checkpoint(path, every_s, clock) for every_s in (0.0, 60.0))
    assert always.due(STATES[0]) and not minute.due(STATES[0])
    clock.now = 60.0
    assert minute.due(STATES[0])
