"""What clients keep, in checkpoints: a file for each, written where it has changed and refused where it is damaged."""

import pytest

from benchmark.federation import checkpoint
from checkpoints import CLIENTS, STATES, equal, made
from datamodules.common.errors import RunError


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
    with pytest.raises(RunError, match=rf"{CLIENTS}/{file.name}: No such file"):
        checkpoint.load(two)


def test_only_what_has_changed_is_written(path):
    kept = checkpoint.Checkpoint(path)
    state = made(1, (1, 1, 1))
    kept.save(state)
    before = {file: file.stat().st_mtime_ns for file in path.with_name(CLIENTS).iterdir()}
    state = made(2, (1, 2, 1))
    kept.save(state)
    after = {file: file.stat().st_mtime_ns for file in path.with_name(CLIENTS).iterdir()}
    assert before.items() <= after.items() and len(after) == len(before) + 1
    assert [float(checkpoint.load(path)["clients"][c][0]["own"][0]) for c in range(3)] == [1.0, 2.0, 1.0]


def test_a_run_that_continues_writes_nothing_that_is_there(two):
    kept = checkpoint.Checkpoint(two)
    before = {file: file.stat().st_mtime_ns for file in two.with_name(CLIENTS).iterdir()}
    kept.save({**kept.load(), "round": 2})
    assert before.items() >= {file: file.stat().st_mtime_ns for file in two.with_name(CLIENTS).iterdir()}.items()
    assert checkpoint.load(two)["round"] == 2
