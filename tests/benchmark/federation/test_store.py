"""Clients' states beyond the limit lie on disk: the same bits, less memory, and checkpoints that share the files."""

import copy
from functools import partial

import pytest
import torch

from benchmark.federation import checkpoint
from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.loop import Federation
from benchmark.federation.site import ClientState
from benchmark.federation.store import Store, discard_states
from datamodules.common.errors import RunError
from federations import few_data, make_method, plain_fabric
from two_processes import between_two

ENTRY = 4 * 100


def state(value):
    return ClientState(
        {"mine": torch.full((50,), float(value))}, [[{"momentum_buffer": torch.full((50,), -float(value))}]]
    )


def values(kept):
    return float(kept.tensors["mine"][0]), float(kept.optimizers[0][0]["momentum_buffer"][0])


def federation(store=None, rounds=3, slots=None):
    data = few_data(6, 6)
    method = make_method("fedavg")
    return Federation(
        method, data, data.roster(0, participants=4), plain_fabric(), rounds, seed=0, store=store, slots=slots
    )


def test_all_states_come_back_and_the_last_ones_lie_in_memory(tmp_path):
    store = Store(2 * ENTRY, tmp_path)
    for client in range(5):
        store[client] = state(client)
    assert store.bytes == 2 * ENTRY and len(list(tmp_path.glob("states.*/*"))) == 3
    assert [values(store[client]) for client in (3, 0, 2, 1, 4)] == [(c, -c) for c in (3, 0, 2, 1, 4)]
    store[0] = state(7)
    assert values(store[0]) == (7, -7) and sorted(store) == list(range(5)) and len(store) == 5
    assert store.get(9) is None and 9 not in store
    store.clear()
    assert not store and store.bytes == 0 and not list(tmp_path.glob("states.*/*"))


def test_what_killed_processes_have_left_is_deleted(tmp_path):
    """And what a store has at its end."""
    killed, store = Store(0, tmp_path), Store(0, tmp_path)
    killed[0], killed[1] = state(0), state(1)
    discard_states(tmp_path)
    assert not list(tmp_path.iterdir())
    store[0], store[1] = state(2), state(3)
    assert list(tmp_path.iterdir())
    del store
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_refused(tmp_path):
    store = Store(0, tmp_path)
    store[0], store[1] = state(0), state(1)
    (file,) = tmp_path.glob("states.*/*")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(RunError, match=r"1.pt is damaged; the same command .* checkpoint that is intact"):
        store[0]


@pytest.mark.parametrize("slots", [None, 2])
def test_states_on_disk_change_no_bit(tmp_path, slots):
    run, plain = federation(Store(0, tmp_path), slots=slots), federation(slots=slots)
    run.run()
    plain.run()
    assert len(list(tmp_path.glob("states.*/*"))) == len(plain.clients) - 1 > 1
    assert all(torch.equal(value, plain.server[name]) for name, value in run.server.items())
    for client, kept in plain.clients.items():
        mine = run.clients[client].optimizers[0]
        pairs = zip(mine, kept.optimizers[0], strict=True)
        assert all(torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in pairs)


def test_a_checkpoint_takes_the_files_and_a_run_continues_from_it(tmp_path):
    """Files of the store get a second name; the one that goes on ends as if it had not stopped."""
    whole, begun = federation(), federation(Store(0, tmp_path))
    whole.run()
    saver = Checkpoint(tmp_path / "checkpoint.pt")
    begun.server_phase(0, first=True)
    for number in range(2):
        begun.run_round(number)
        begun.round += 1
        saver.save(begun.state_dict())
    names = {file.name for file in (tmp_path / "checkpoint.clients").iterdir()}
    assert all(f"clients-{client}-" in " ".join(names) for client in begun.clients)
    assert any(file.stat().st_nlink == 2 for file in tmp_path.glob("states.*/*"))
    taken = begun.state_dict()  # of the end of this round; it must be savable in the middle of the next one
    begun.run_round(2)
    saver.save(taken)
    saved = checkpoint.load(tmp_path / "checkpoint.pt")
    resumed = federation(Store(0, tmp_path))
    resumed.load_state_dict(copy.deepcopy(saved))
    resumed.run()
    assert all(torch.equal(value, whole.server[name]) for name, value in resumed.server.items())


def two(fabric, folder):
    store = Store(0, folder)
    data, method = few_data(6, 6), make_method("fedavg")
    run = Federation(method, data, data.roster(0, participants=4), fabric, 3, seed=0, store=store)
    run.run()
    return {name: value.clone() for name, value in run.server.items()}, store.bytes, len(run.clients)


def test_two_processes_with_states_on_disk_give_the_bits_of_one(tmp_path):
    plain = federation()
    plain.run()
    for server, held, clients in between_two(partial(two, folder=tmp_path)):
        assert all(torch.equal(value, plain.server[name]) for name, value in server.items())
        assert 0 < held < clients * plain.engine.kept_bytes() / 2
