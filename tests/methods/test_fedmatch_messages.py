"""FedMatch's messages: entries that have changed enough, up and down, and their bytes."""

import pytest
import torch
from torch import Tensor

from benchmark.federation.loop import Federation
from benchmark.federation.reference import Sent
from federations import make_federation, run_rows
from fedmatch_runs import AT_CLIENTS, GENTLE, changed, federation, few, method, single
from methods.ablations.fedmatch import OwnEntriesKept
from methods.base import Visit
from methods.fedmatch import FedMatch, sparse_bytes, unflat, update


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
    site, work = run.engine.begin_visit(visit, Sent(sent, 0), None)
    site.fit(work)
    trained = {name: value.clone() for name, value in made.tensors("shared").items()}
    upload = made.make_upload(site)
    assert upload is not None
    psi = {f"model.{name}" for name in made.psi_names}
    masks, small, kept = [], 0, 0
    for name, value in upload.tensors.items():
        server, compared = run.server[name], trained[name].clone()
        if name in psi:
            compared[compared.abs() <= 1e-3] = 0.0
        travels = (compared - server).abs() > 2e-4
        expected = server.clone()
        expected[travels] = trained[name][travels]
        assert torch.equal(value, expected)
        assert torch.equal(made.tensors("shared")[name], expected)  # the client goes on from it
        masks.append(travels)
        small += int((travels & (compared == 0) & (trained[name] != 0)).sum())
        kept += int((~travels & (sent[name] != server)).sum())
    assert small > 20
    assert (kept > 20) == (cls is OwnEntriesKept)
    assert upload.num_bytes == sparse_bytes(masks, [8] * len(masks))


def test_nothing_trained_nothing_uploaded() -> None:
    """Neither sigma without labels, nor psi at a rate of 0."""
    run = federation(method("static", lr=0.0))
    upload = run.run_visits(run.visits(0)[:1])[0][0]
    assert upload.num_bytes == 0
    assert changed(run.server, upload.tensors) == set()


def test_what_is_downloaded() -> None:
    """A client keeps its own entries where the server's, with psi up to ``l1_threshold`` as 0, are within ``delta``;
    the others come as the server has them. The first download is whole.
    """
    run, visit, sent = second_visit(OwnEntriesKept)
    made = run.method
    held, psi = made.memory[1], set(made.psi_names)
    parameters = dict(made.model.named_parameters())
    own = unflat(held["psi"], {name: p for name, p in parameters.items() if name in psi})
    own |= unflat(held["sigma"], {name: p for name, p in parameters.items() if name not in psi})
    masks, small = [], 0
    for name, value in own.items():
        server = run.server[f"model.{name}"]
        compared = server.clone()
        if name in psi:
            compared[compared.abs() <= 1e-3] = 0.0
        travels = (compared - value).abs() > 2e-4
        expected = value.clone()
        expected[travels] = server[travels]
        assert torch.equal(sent[f"model.{name}"], expected)
        masks.append(travels)
        small += int((travels & (compared == 0) & (server != 0)).sum())
    assert small > 20
    assert made.sent_bytes(sent, visit) == sparse_bytes(masks, [8] * len(masks))


def test_bytes_of_downloads() -> None:
    """Whole models in the first round; later ones in full, or what changed alone."""
    for cls in (FedMatch, OwnEntriesKept):
        made = method(cls=cls, helpers=0, lr=1e-3, **(AT_CLIENTS | {"l1_threshold": 5e-6, "delta": 1e-3}))
        run = federation(made, few("all_clients"), rounds=2)
        run.server_phase(0, first=True)
        rows = [run.run_round(0), run.run_round(1)]
        whole = sum(t.numel() * t.element_size() for t in run.method.tensors("shared").values())
        assert rows[0]["bytes_down"] == rows[0]["visits"] * whole
        if cls is FedMatch:
            assert run.method.memory == {}
            assert rows[1]["bytes_down"] == 2 * rows[0]["bytes_down"]
            assert changed(run.server, run.method.broadcast(run.server, Visit(round=2, client=0))) == set()
        else:
            assert rows[1]["bytes_down"] < 1.9 * rows[0]["bytes_down"]


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
    """Closed form: more than delta, not delta itself."""
    old, new = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([0.5, 0.25, -1.0, 1.0])
    value, sent = update(new, old, 0.25)
    assert value.tolist() == [0.5, 0.0, -1.0, 1.0]
    assert sent.tolist() == [True, False, True, False]


def test_what_is_cut_decides_and_the_raw_value_is_sent() -> None:
    """Entries up to the cut are compared as 0."""
    old, new = torch.tensor([0.0, 1.0, 0.2, 0.2]), torch.tensor([0.5, 0.5, 0.3, 0.75])
    value, sent = update(new, old, 0.25, cut=0.5)
    assert value.tolist() == pytest.approx([0.0, 0.5, 0.2, 0.75])
    assert sent.tolist() == [False, True, False, True]


def test_what_is_no_number_is_a_change() -> None:
    """It is sent, and seen by who receives it."""
    value, sent = update(torch.tensor([float("nan"), 0.0]), torch.zeros(2), 0.5, cut=0.1)
    assert bool(value.isnan()[0])
    assert sent.tolist() == [True, False]


def test_bytes_of_sparse_updates() -> None:
    """Values and one bit per entry; never more than all values; nothing where nothing changed."""
    masks = [torch.arange(20) < k for k in (0, 3, 20)]
    assert sparse_bytes(masks[:1], [4]) == 0
    assert sparse_bytes(masks[1:2], [4]) == 3 * 4 + 3
    assert sparse_bytes(masks[2:], [4]) == 20 * 4
    assert sparse_bytes(masks, [4, 8, 2]) == 0 + (3 * 8 + 3) + 20 * 2
    assert sparse_bytes([], []) == 0
