"""Clients' states beyond the limit lie on disk: the same bits, less memory, and checkpoints that share the files."""

from functools import partial

import pytest
import torch

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.loop import Federation
from benchmark.federation.site import ClientState
from benchmark.federation.store import Store
from datamodules.common.errors import RunError
from federations import few_data, make_method, plain_fabric, same_server
from two_processes import between_two

ENTRY = 4 * 100


def state(value):
    return ClientState(
        {"mine": torch.full((50,), float(value))}, [[{"momentum_buffer": torch.full((50,), -float(value))}]]
    )


def values(kept):
    return float(kept.tensors["mine"][0]), float(kept.optimizers[0][0]["momentum_buffer"][0])


def federation(store=None, fabric=None):
    data = few_data(6, 6)
    roster = data.roster(0, participants=4)
    run = Federation(make_method("fedavg"), data, roster, fabric or plain_fabric(), rounds=3, seed=0)
    run.clients = run.clients if store is None else store
    return run


def test_all_states_come_back_and_the_last_ones_lie_in_memory(tmp_path):
    store = Store(2 * ENTRY, tmp_path)
    for client in range(5):
        store[client] = state(client)
    assert store.bytes == 2 * ENTRY and len(list(tmp_path.glob("states.*/*"))) == 3
    assert [values(store[client]) for client in (3, 0, 2, 1, 4)] == [(c, -c) for c in (3, 0, 2, 1, 4)]
    store[0] = state(7)
    assert values(store[0]) == (7, -7) and sorted(store) == list(range(5)) and len(store) == 5
    assert store.get(9) is None and 9 not in store
    file = next(tmp_path.glob("states.*/*"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(RunError, match=rf"{file.name} is damaged; the same command .* checkpoint that is intact"):
        list(store.values())
    store.clear()
    assert not store and store.bytes == 0 and not list(tmp_path.glob("states.*/*"))


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
    saved = Checkpoint(tmp_path / "checkpoint.pt").load()
    resumed = federation(Store(0, tmp_path))
    resumed.load_state_dict(saved)
    resumed.run()
    assert same_server(resumed, whole)


def in_one_of_two(fabric, folder):
    run = federation(Store(0, folder), fabric)
    run.run()
    return {name: value.clone() for name, value in run.server.items()}, run.clients.bytes, len(run.clients)


def test_two_processes_with_states_on_disk_give_the_bits_of_one(tmp_path):
    plain = federation()
    plain.run()
    for server, held, clients in between_two(partial(in_one_of_two, folder=tmp_path)):
        assert all(torch.equal(value, plain.server[name]) for name, value in server.items())
        assert 0 < held < clients * plain.engine.kept_bytes() / 2
