"""FedRGD: bridges and slots over rounds."""

import pytest
import torch
from torch import Tensor

from datamodules.partition.roster import Roster
from federations import make_method
from methods.base import Upload, Visit
from methods.fedrgd import FedRGD

ROSTER = Roster(7, tuple(range(7)), participants=6)


def filled(method: FedRGD, value: float) -> dict[str, Tensor]:
    """A model whose every weight is ``value``."""
    return {name: torch.full_like(tensor, value) for name, tensor in method.tensors("shared").items()}


def test_slots_over_two_rounds() -> None:
    """Group means stay in the group's places, the bridges hold the global mean, clients take what their place holds."""
    method = make_method("fedrgd")
    groups = method.select_clients(0, ROSTER)
    values = {client: float(10**g + place) for g, group in enumerate(groups) for place, client in enumerate(group)}
    visits = [Visit(client=c, cohort=g, size=1) for g, group in enumerate(groups) for c in group]
    uploads = [Upload(v, filled(method, values[v.client]), 1.0) for v in visits]
    method.aggregate(sorted(uploads, key=lambda u: u.visit.client))
    means = [(1 + 2 + 3) / 3, (10 + 11 + 12) / 3]
    first = method.names("shared")[0]
    server = method.tensors("shared", "server")
    assert float(server[first].flatten()[0]) == pytest.approx(sum(means) / 2)
    following = method.select_clients(1, ROSTER)
    for g, group in enumerate(following):
        for place, client in enumerate(group):
            sent = method.broadcast(server, Visit(round=1, client=client, cohort=g))
            expected = means[g] if place else sum(means) / 2
            assert set(sent) == set(method.names("shared"))
            assert all(float(v.flatten()[0]) == pytest.approx(expected) for v in sent.values())


def test_a_group_without_uploads_keeps_its_model() -> None:
    """The slots of a group whose clients return nothing stay as they were; the global model is the other group's."""
    method = make_method("fedrgd")
    groups = method.select_clients(0, ROSTER)
    before = method.tensors("server")
    method.aggregate([Upload(Visit(client=groups[1][0], cohort=1), filled(method, 5.0), 1.0)])
    after = method.tensors("server", "shared")
    assert all(torch.equal(v, after[k]) for k, v in before.items() if k.startswith("slots.0."))
    assert all(float(v.flatten()[0]) == 5.0 for k, v in after.items() if k.startswith(("slots.1.", "model.")))
