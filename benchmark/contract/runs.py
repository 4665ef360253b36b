"""Checks of whole runs on real digits, in the scenario that the method was made for."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from benchmark.contract.federations import (
    class_of,
    data_for,
    flowing,
    make_federation,
    make_method,
    run_rows,
)
from benchmark.federation.fit import Fit
from methods.base import Batch, FedMethod, Visit

Method = str | type[FedMethod]


def check_a_run_is_finite_and_learns(method: Method) -> None:
    """Three rounds end with finite numbers and moved weights."""
    federation = make_federation(method, **flowing(method))
    before = {k: v.clone() for k, v in federation.server.items()}
    rows = run_rows(federation)
    assert len(rows) == 3
    assert all(0 <= row["acc"] <= 100 for row in rows)
    assert all(bool(torch.isfinite(v).all()) for v in federation.server.values())
    assert any(not torch.equal(v, before[k]) for k, v in federation.server.items())


def check_pseudo_labels_flow(method: Method) -> None:
    """In the runs that these checks compare, pseudo-labels are used wherever a method counts them."""
    if "unlabelled" not in make_method(method).views:
        return
    row = run_rows(make_federation(method, **flowing(method)))[-1]
    used = [row[k] for k in ("pseudo/selected", "pseudo/certain") if k in row]
    assert used == [] or max(used) > 0.0, (
        f"{class_of(method).__name__} selected no pseudo-label in three rounds, so these checks see little of it: "
        "name arguments with which it does in `contract_args`, e.g. a low threshold"
    )


def check_same_seed_same_bits(method: Method) -> None:
    """Two runs of one seed agree to the last bit; another seed does not."""
    first, second = (run_rows(make_federation(method, **flowing(method))) for _ in range(2))
    assert first == second
    other = make_federation(method, **flowing(method))
    other.engine.around = replace(other.engine.around, seed=1)
    assert run_rows(other) != first


def check_resume_is_exact(method: Method) -> None:
    """A checkpoint after any round, through a file, continues to the same bits."""
    whole = make_federation(method, **flowing(method))
    rows = run_rows(whole)
    for stop in (1, 2):
        part = make_federation(method, **flowing(method))
        part.server_phase(0, first=True)
        for number in range(stop):
            part.run_round(number)
            part.round += 1
        buffer = io.BytesIO()
        torch.save(part.state_dict(), buffer)
        buffer.seek(0)
        rest = make_federation(method, **flowing(method))
        rest.load_state_dict(torch.load(buffer, weights_only=True))
        assert run_rows(rest) == rows[stop:]
        assert all(torch.equal(v, whole.server[k]) for k, v in rest.server.items())


def check_order_of_visits_is_irrelevant(method: Method) -> None:
    """Clients that train in another order, as on several processes, give the same bits: no visit leaves a trace."""
    rows = run_rows(make_federation(method, rounds=2, **flowing(method)))

    def backwards(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
        return [sorted(visits, key=lambda v: (-v.client, v.repeat))]

    with patch("benchmark.federation.loop.assign", backwards):
        assert run_rows(make_federation(method, rounds=2, **flowing(method))) == rows


def check_hidden_labels_are_not_read(method: Method) -> None:
    """Training is the same when every hidden label is wrong."""
    data, poisoned = (data_for(make_method(method)) for _ in range(2))
    hidden = torch.ones(len(poisoned._labels), dtype=torch.bool)
    for site in [*poisoned._clients, poisoned.server]:
        hidden[site.labelled] = False
    assert bool(hidden.any())
    poisoned._labels[hidden] = -1
    runs = [make_federation(method, data=d, **flowing(method)) for d in (data, poisoned)]
    for federation in runs:
        federation.server_phase(0, first=True)
        for number in range(2):
            federation.run_round(number)
    assert all(torch.equal(v, runs[1].server[k]) for k, v in runs[0].server.items())


def check_a_step_leaves_its_batch_alone(method: Method) -> None:
    """A step changes registered tensors only: its batch is as it was, and its loss is finite."""
    steps = []
    compute = Fit.compute

    def watched(self: Fit, batch: Batch, number: int) -> Any:
        before = {(s, f): v.clone() for s, fields in batch.items() for f, v in fields.items()}
        made = compute(self, batch, number)
        assert all(torch.equal(batch[s][f], v) for (s, f), v in before.items())
        steps.append(self.lightning_module.tallied("loss"))
        return made

    with patch.object(Fit, "compute", watched):
        run_rows(make_federation(method, rounds=2, **flowing(method)))
    assert steps
    assert all(loss is not None and bool(loss.isfinite()) for loss in steps)


def check_double_precision(method: Method) -> None:
    """A run in float64 works."""
    rows = run_rows(make_federation(method, rounds=2, precision="64-true", **flowing(method)))
    assert all(0 <= row["acc"] <= 100 for row in rows)


def check_bf16_autocast(method: Method) -> None:
    """A run under bf16 autocast works."""
    rows = run_rows(make_federation(method, rounds=2, precision="bf16-mixed", **flowing(method)))
    assert all(0 <= row["acc"] <= 100 for row in rows)


def check_bytes_are_counted(method: Method) -> None:
    """What is sent is at least the shared tensors of every visit, and is counted on both ways."""
    federation = make_federation(method, rounds=1, **flowing(method))
    shared = sum(v.numel() * v.element_size() for v in federation.method.tensors("shared").values())
    row = run_rows(federation)[0]
    assert row["bytes_down"] >= row["visits"] * shared
    assert row["bytes_up"] <= row["bytes_down"] + 10_000


def check_clients_with_one_image_or_none(method: Method) -> None:
    """A client with a single image, and one with nothing at all, do not break a round."""
    federation = make_federation(method, **flowing(method))
    sites = federation.data._clients
    site = sites[-1]
    keep = 1 if len(site.unlabelled) else 0
    sites[-1] = type(site)(site.labelled[: 1 - keep], site.labels[: 1 - keep], site.unlabelled[:keep])
    sites[-2] = type(site)(site.labelled[:0], site.labels[:0], site.unlabelled[:0])
    rows = run_rows(federation)
    assert all(bool(torch.isfinite(v).all()) for v in federation.server.values())
    assert len(rows) == 3


def check_default_arguments_are_plain(method: Method) -> None:
    """All hyperparameters can be written into a configuration file."""
    for name, value in make_method(method).hparams.items():
        assert isinstance(value, (int, float, str, bool, list, type(None))), f"{name} is a {type(value).__name__}"
