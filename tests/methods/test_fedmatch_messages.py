"""FedMatch's messages: entries that have changed enough, up and down, and their bytes."""

import pytest
import torch
from torch import Tensor

from benchmark.federation.loop import Federation
from benchmark.federation.site import Sent
from federations import make_federation, run_rows
from fedmatch_runs import AT_CLIENTS, GENTLE, changed, federation, few, method, single
from methods.ablations.fedmatch import OwnEntriesKept
from methods.base import Visit
from methods.fedmatch import FedMatch
from methods.parts.sparse import differs, sparse_bytes


def second_visit(cls: type[FedMatch]) -> tuple[Federation, Visit, dict[str, Tensor]]:
    """A federation after a round in which every client took part, its next visit, and what that is sent."""
    data = few("all_clients")
    made = method(cls=cls, helpers=0, lr=1e-3, lambda_l1=1e-4, reset_momentum=True, **AT_CLIENTS)
    run = federation(made, data, rounds=2)
    run.roster = data.roster(0, participants=6)
    run.server_phase(0, first=True)
    run.run_round(0)
    visit = Visit(round=1, client=1, size=data.client(1).size)
    return run, visit, made.broadcast(run.server, visit)


@pytest.mark.parametrize("cls", [FedMatch, OwnEntriesKept])
def test_what_is_uploaded(cls: type[FedMatch]) -> None:
    """Entries more than ``delta`` from the server's, with psi up to ``l1_threshold`` as 0, travel as they are; the
    others are the server's again, whatever the client has kept.
    """
    run, visit, sent = second_visit(cls)
    made = run.method
    site, work = run.engine.seats[0].begin_visit(visit, Sent(sent, 0), None)
    site.fit(work)
    trained = {name: value.clone() for name, value in made.tensors("shared").items()}
    upload = made.make_upload(site)
    assert upload is not None
    psi = {f"model.{name}" for name in made.psi_names}
    masks, small, kept = {}, 0, 0
    for name, value in upload.tensors.items():
        server, compared = run.server[name], trained[name].clone()
        if name in psi:
            compared[compared.abs() <= 1e-3] = 0.0
        travels = (compared - server).abs() > 2e-4
        expected = server.clone()
        expected[travels] = trained[name][travels]
        assert torch.equal(value, expected)
        assert torch.equal(made.tensors("shared")[name], expected)  # the client goes on from it
        masks[name] = travels
        small += int((travels & (compared == 0) & (trained[name] != 0)).sum())
        kept += int((~travels & (sent[name] != server)).sum())
    assert small > 20
    assert (kept > 20) == (cls is OwnEntriesKept)
    assert upload.num_bytes == sparse_bytes(masks, run.server)


def test_nothing_trained_nothing_uploaded() -> None:
    """Neither sigma without labels, nor psi at a rate of 0."""
    run = federation(method("static", lr=0.0))
    upload = run.run_visits(run.visits(0)[:1])[0][0]
    assert upload.num_bytes == 0
    assert changed(run.server, upload.tensors) == set()


def test_what_is_downloaded() -> None:
    """A client keeps its own entries where the server's are within ``delta``, with psi up to ``l1_threshold`` as 0 on
    both sides; the others come as the server has them. The first download is whole.
    """
    run, visit, sent = second_visit(OwnEntriesKept)
    made, psi = run.method, {f"model.{name}" for name in run.method.psi_names}
    masks, small = {}, 0
    for name, own in made.kept(1).items():
        server = run.server[name]
        here, there = own.clone(), server.clone()
        if name in psi:
            here[here.abs() <= 1e-3] = there[there.abs() <= 1e-3] = 0.0
        travels = (there - here).abs() > 2e-4
        assert torch.equal(sent[name], torch.where(travels, server, own))
        masks[name] = travels
        small += int((~travels & ((there - own).abs() > 2e-4)).sum())  # cut at one side alone they would
    assert small > 20
    assert made.sent_bytes(sent, visit) == sparse_bytes(masks, run.server)


def test_helpers_are_counted() -> None:
    """Two more parts psi on the way down, of which entries up to ``l1_threshold`` count as 0 and are not sent."""
    run = make_federation("fedmatch", single(), rounds=2, helper_every=1, local_epochs=1, **GENTLE)
    rows = run_rows(run)
    psi = sum(p.numel() * 4 for p in run.method.psi().values())
    whole = rows[0]["bytes_down"] // rows[0]["visits"]
    second = rows[1]["bytes_down"] - rows[0]["bytes_down"]
    assert second == pytest.approx(rows[1]["visits"] * (whole + 2 * psi + 8), rel=1e-3)
    helper = torch.zeros(160)
    helper[:5], helper[5:20] = 1.1e-5, 0.9e-5
    sent = {"helper.0": helper, "helper_count": torch.tensor(1)}
    assert run.method.sent_bytes(sent, Visit(client=0)) == 5 * 4 + 160 // 8 + 8


def test_only_large_changes_are_sent() -> None:
    """More than delta, not delta itself; and what is no number, so that who receives it sees it."""
    new, old = torch.tensor([0.5, 0.25, -1.0, 1.0, float("nan")]), torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])
    assert differs(new, old, 0.25).tolist() == [True, False, True, False, True]


def test_bytes_of_sparse_updates() -> None:
    """Values and one bit per entry; never more than all values; nothing where nothing changed."""
    masks = {name: torch.arange(20) < k for name, k in (("a", 0), ("b", 3), ("c", 20))}
    values = {"a": torch.zeros(20), "b": torch.zeros(20).double(), "c": torch.zeros(20).half()}
    assert [sparse_bytes({name: mask}, values) for name, mask in masks.items()] == [0, 3 * 8 + 3, 20 * 2]
    assert sparse_bytes(masks, values) == 3 * 8 + 3 + 20 * 2
    assert sparse_bytes({}, {}) == 0
