"""FedRGD: bridges and slots over rounds, its step-wise loss, and its place among FixMatch variants."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.federation.loop import Federation
from datamodules.digits import Digits
from federations import SIDE, FewDigits, make_method, plain_fabric
from methods.ablations.fixmatch import EveryStep
from methods.base import Upload, Visit
from methods.fedrgd import FedRGD
from methods.parts.tensors import debias


def data_of(clients: int = 7) -> Digits:
    """A few digits with labels at all clients."""
    data = FewDigits(
        scenario="all_clients",
        num_clients=clients,
        partition="iid",
        num_labels=70,
        pipeline="randaugment_levels",
        side=SIDE,
    )
    data.setup()
    return data


def federation(name: str | type = "fedrgd", rounds: int = 3, participants: int | None = 6, **args: Any) -> Federation:
    """A method over seven clients, six per round."""
    data = data_of()
    method = make_method(name, **{"local_epochs": 1, **args})
    return Federation(method, data, data.roster(0, participants), plain_fabric(), rounds, seed=0)


def filled(method: FedRGD, value: float) -> dict[str, Tensor]:
    """A model whose every weight is ``value``."""
    return {name: torch.full_like(tensor, value) for name, tensor in method.tensors("shared").items()}


def test_slots_over_two_rounds() -> None:
    """Group means stay in the group's places, the bridges hold the global mean, clients take what their place holds."""
    method = make_method("fedrgd")
    assert isinstance(method, FedRGD)
    roster = data_of().roster(0, 6)
    groups = method.select_clients(0, roster)
    values = {client: float(10**g + place) for g, group in enumerate(groups) for place, client in enumerate(group)}
    visits = [Visit(client=c, cohort=g, size=1) for g, group in enumerate(groups) for c in group]
    uploads = [Upload(v, filled(method, values[v.client]), 1.0) for v in visits]
    method.aggregate(sorted(uploads, key=lambda u: u.visit.client))
    means = [(1 + 2 + 3) / 3, (10 + 11 + 12) / 3]
    first = method.names("shared")[0]
    server = method.tensors("shared", "server")
    assert float(server[first].flatten()[0]) == pytest.approx(sum(means) / 2)
    following = method.select_clients(1, roster)
    for g, group in enumerate(following):
        for place, client in enumerate(group):
            sent = method.broadcast(server, Visit(round=1, client=client, cohort=g))
            expected = means[g] if place else sum(means) / 2
            assert set(sent) == set(method.names("shared"))
            assert all(float(v.flatten()[0]) == pytest.approx(expected) for v in sent.values())


def test_a_group_without_uploads_keeps_its_model() -> None:
    """The slots of a group whose clients return nothing stay as they were; the global model is the other group's."""
    method = make_method("fedrgd")
    groups = method.select_clients(0, data_of().roster(0, 6))
    before = method.tensors("server")
    method.aggregate([Upload(Visit(client=groups[1][0], cohort=1), filled(method, 5.0), 1.0)])
    after = method.tensors("server", "shared")
    assert all(torch.equal(v, after[k]) for k, v in before.items() if k.startswith("slots.0."))
    assert all(float(v.flatten()[0]) == 5.0 for k, v in after.items() if k.startswith(("slots.1.", "model.")))


def test_with_global_state_and_equal_groups_it_is_fixmatch_at_every_step() -> None:
    """Without slots the mean of equal groups' means is the plain mean: the same run but for rounding."""
    same = {"full_batch": True, "threshold": 0.108}
    grouped = federation(group_state="global", **same)
    plain = federation(EveryStep, server_momentum=0.0, eval_batch=250, **same)
    for run in (grouped, plain):
        for number in range(2):
            run.run_round(number)
    for name in plain.method.names("shared"):
        torch.testing.assert_close(grouped.server[name], plain.server[name], rtol=1e-4, atol=1e-6)
    slots = federation(**same)
    slots.run_round(0)
    slots.run_round(1)
    assert any(not torch.allclose(slots.server[n], plain.server[n], atol=1e-5) for n in plain.method.names("shared"))


@pytest.mark.parametrize("norm", ["confident", "all"])
@pytest.mark.parametrize("dpl", [False, True])
def test_loss_of_a_step(norm: Any, dpl: bool) -> None:
    """Labels from the weak views under the current weights, debiased over the batch; both ways to average."""
    method, data = make_method("fedrgd", unsup_norm=norm, dpl=dpl), data_of()
    site, g = data.client(0), torch.Generator().manual_seed(0)
    weak, strong = (data.take(v, site.unlabelled, g) for v in ("weak", "strong"))
    x = data.take("weak", site.labelled, g)
    p = method.model(weak).softmax(dim=1)
    confidence, labels = (debias(p) if dpl else p).max(dim=1)
    method.hparams.threshold = float(confidence.detach().median())
    keep = confidence >= confidence.median()
    assert 0 < int(keep.sum()) < len(keep)
    loss = method.training_step(
        {"labelled": {"x": x, "y": site.labels}, "unlabelled": {"weak": weak, "strong": strong}}, 0
    )
    term = F.cross_entropy(method.model(strong[keep]), labels[keep], reduction="sum")
    term = term / (int(keep.sum()) if norm == "confident" else len(keep))
    torch.testing.assert_close(loss, F.cross_entropy(method.model(x), site.labels) + term)
