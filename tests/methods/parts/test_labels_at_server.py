"""A server that trains on its labels: pre-training, the step after every aggregation, and the server alone."""

import torch
from torch import Tensor

from federations import make_federation


def test_server_trains_and_keeps_its_momentum() -> None:
    """Pre-training is the server's routine several times over: 10 calls of 5 epochs of 4 steps, one optimiser state."""
    federation = make_federation("server_only", server_pretrain=2, rounds=1)
    steps = []
    federation.method.on_train_batch_end = lambda *args: steps.append(args[2])
    federation.server_phase(0, first=True)
    assert len(steps) == 2 * 5 * 4
    momenta = [s["momentum_buffer"].clone() for s in federation.server_state.optimizers[0]]
    federation.run_round(0)
    assert len(steps) == 3 * 5 * 4
    after = [s["momentum_buffer"] for s in federation.server_state.optimizers[0]]
    assert any(not torch.equal(a, b) for a, b in zip(momenta, after, strict=True))


def test_pre_training_and_the_first_server_step_see_other_batches() -> None:
    """They are two visits of round 0."""
    orders: dict[bool, list[Tensor]] = {}
    federation = make_federation("server_only", server_pretrain=1, server_epochs=1)
    method = federation.method
    method.on_train_batch_end = lambda *args: orders.setdefault(method.visit.before_first_round, []).append(
        args[1]["labelled"]["y"]
    )
    federation.server_phase(0, first=True)
    federation.server_phase(0)
    first, second = (torch.cat(orders[k]) for k in (True, False))
    assert torch.equal(first.sort().values, second.sort().values)
    assert not torch.equal(first, second)


def test_momentum_of_clients_is_reset_without_the_servers() -> None:
    federation = make_federation("fixmatch", server_pretrain=1, server_epochs=1, reset_momentum=True, rounds=1)
    federation.server_phase(0, first=True)
    momenta = [s["momentum_buffer"].clone() for s in federation.server_state.optimizers[0]]
    federation.run_round(0)
    after = [s["momentum_buffer"] for s in federation.server_state.optimizers[0]]
    assert any(not torch.equal(a, b) for a, b in zip(momenta, after, strict=True))
    assert all(not state.optimizers for state in federation.clients.values())
