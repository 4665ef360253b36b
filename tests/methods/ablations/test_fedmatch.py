"""Other people's copies of FedMatch: SemiFL's, and FedCon's, whose clients are inert."""

import pytest
import torch

from federations import make_federation, run_rows
from fedmatch_runs import changed, federation, few, method, single
from methods import models
from methods.ablations.fedmatch import SemiFLsCopy
from methods.parts.additive import pairs


def test_the_copy_in_semifls_code_never_trains_its_classifier() -> None:
    """Nor what its norms learn: only convolutions have parts."""
    data = few("all_clients")
    run = federation(method("static", cls=SemiFLsCopy, threshold=0.0, helpers=0, lambda_l1=0.0, lambda_l2=0.0), data)
    run.roster = data.roster(0, participants=1)
    before = dict(run.server)
    run.run_round(0)
    parameters = [f"model.{name}" for name, _ in run.method.model.named_parameters()]
    named = {name for name in parameters if float((run.server[name] - before[name]).abs().max()) > 1e-12}
    assert named
    assert all(".parametrizations.weight." in name for name in named)
    assert not any(name.startswith("model.head") for name in named)


def test_inert_clients_leave_what_the_labels_alone_give() -> None:
    """The hypothesis behind the published rows: without learning clients the method is the server's steps."""
    args = {"local_epochs": 1, "server_epochs": 1, "clip_norm": 1.0}
    inert = make_federation("methods.ablations.fedmatch.InertClients", single(), lambda_s=1.0, **args)
    alone = make_federation("server_only", single(), **args)
    start = dict(inert.server)
    rows = [[row["acc"] for row in run_rows(run)] for run in (inert, alone)]
    assert rows[0] == rows[1]
    weights = {name: value for name, value in alone.server.items() if name.startswith("model.")}
    assert changed(start, alone.server) == set(weights)
    assert changed(weights, inert.server) == set()


def test_independent_parts() -> None:
    """In SemiFL's copy psi is drawn from the law of variance 2 / fan_out, and is not a multiple of sigma."""
    divided = models.build("resnet9", 10, width=16)
    SemiFLsCopy(divided, num_classes=10, num_clients=1, image_shape=(3, 32, 32))
    sigma, psi = pairs(divided)[-1]
    fan_out = psi.shape[0] * psi.shape[2] * psi.shape[3]
    assert float(psi.detach().var()) == pytest.approx(2.0 / fan_out, rel=0.05)
    mixed = torch.stack([sigma.detach().flatten(), psi.detach().flatten()]).corrcoef()
    assert abs(float(mixed[0, 1])) < 0.05
