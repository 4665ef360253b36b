"""One optimiser state for all clients, which goes from visit to visit."""

import torch
import torch.nn.functional as F

from benchmark.federation.loop import Federation
from datamodules.common.streams import generator
from federations import SIDE, Unaugmented, few_data, few_federation, make_method, plain_fabric, run_rows, same_server
from methods import models
from methods.parts.aggregation import weighted_mean
from two_processes import between_two

ROUNDS = 2


class HandsOn(Unaugmented):
    """One optimiser state for all clients."""

    def optimizer_scopes(self):
        return ["shared"]


class LastFirst(HandsOn):
    """Clients come from the last to the first."""

    def select_clients(self, round, roster):
        return [roster.sample(round)[::-1]]


def test_a_shared_optimiser_goes_from_visit_to_visit():
    """One optimiser of plain torch for both clients and all rounds, in the order drawn, bit for bit."""
    run = few_federation(LastFirst, clients=2, lr=0.1, clip_norm=None)
    data = run.data
    run_rows(run)
    assert not any(state.optimizers for state in run.clients.values())
    assert run.engine.kept_bytes() == 0

    torch.manual_seed(0)
    model = models.build("small_cnn", 10, image_size=SIDE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, fused=True)
    for number in range(ROUNDS):
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        left = {}
        for client in (1, 0):
            site = data.client(client)
            model.load_state_dict(sent)
            order = torch.randperm(site.size, generator=generator(0, "order/labelled/1", number, client, 0))
            for part in order.split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(data.take("test", site.labelled[part])), site.labels[part]).backward()
                optimizer.step()
            left[client] = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(weighted_mean([left[0], left[1]], [data.client(k).size for k in (0, 1)]))
    assert all(torch.equal(value, run.server[f"model.{name}"]) for name, value in model.state_dict().items())


def test_slots_then_take_turns_in_whole_visits():
    """With replay, too, they come to the reference's bits."""
    reference, slots = few_federation(LastFirst, clients=3), few_federation(LastFirst, clients=3, slots=3)
    assert run_rows(reference) == run_rows(slots) and same_server(reference, slots)
    assert slots.engine.counts()["replayed"] > 0


def hand_on(fabric):
    """A run's rows, and its last model, in one of several processes."""
    method = make_method(HandsOn)
    data = few_data(3)
    run = Federation(method, data, data.roster(0), fabric, rounds=2, seed=0)
    return run_rows(run), {name: value.tolist() for name, value in run.server.items()}


def test_several_processes_hand_on_as_one_does():
    """Both hold what one process alone comes to."""
    alone = hand_on(plain_fabric())
    assert between_two(hand_on) == [alone, alone]
