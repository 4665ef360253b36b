"""One step contract, several executions: a plain ``Trainer``, the reference engine, slots, slots with replay."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmark.federation import fit as fits
from benchmark.federation.recording import count_host_reads
from benchmark.federation.reference import LocalSite
from datamodules.views.batches import Batch, LocalWork
from federations import flowing, make_federation, run_rows
from methods.base import Visit

SCOPES = ("shared", "personal", "local", "server")


class Visited(IterableDataset[Batch]):
    """A client's local epochs, one at every iteration."""

    def __init__(self, site: LocalSite, work: LocalWork) -> None:
        self.site, self.work, self.epochs = site, work, 0

    def __iter__(self) -> Iterator[Batch]:
        self.epochs += 1
        return self.site.batches(self.work, self.epochs - 1)


class TakeUp(L.Callback):
    """Gives the optimisers of a Trainer what the client has kept of theirs."""

    def __init__(self, states: fits.OptimizerStates) -> None:
        self.states = states

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        fits.load_states(trainer.optimizers, self.states)


def started(method_name: str, **args: Any) -> Any:
    """A federation after its first two rounds: clients hold state, the warm-up is over."""
    federation = make_federation(method_name, rounds=4, **flowing(method_name), **args)
    federation.server_phase(0, first=True)
    for number in range(2):
        federation.run_round(number)
        federation.round += 1
    return federation


def some_visits(federation: Any) -> list[Visit]:
    """Of the next round, a visit of every kind of client, and one to a client that has taken part before."""
    chosen: dict[Any, Visit] = {}
    for visit in federation.visits(2):
        chosen.setdefault((visit.labelled, visit.first), visit)
    return list(chosen.values())


@pytest.mark.filterwarnings("ignore")
def test_a_visit_is_a_fit(method_name: str) -> None:
    """``Trainer.fit`` over the batches of a client's visit takes the same steps, to the bit."""
    federation = started(method_name)
    engine, method = federation.engine, federation.method
    visits = some_visits(federation)
    steps = 0
    for visit in visits:
        sent, kept = engine.sent(visit, federation.server), federation.clients.get(visit.client)
        _, state = engine.client(visit, sent, kept)
        visited = method.tensors(*SCOPES)
        with engine.random(visit):
            site, work = engine.arrive(visit, sent, kept)
            trainer = L.Trainer(
                max_epochs=len(work),
                accelerator="cpu",
                logger=False,
                callbacks=[TakeUp(kept.optimizers if kept else [])],
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            if work:
                trainer.fit(method, DataLoader(Visited(site, work), batch_size=None))
                steps += trainer.global_step
            method.make_upload(site)
        fitted = method.tensors(*SCOPES)
        assert [name for name in visited if not torch.equal(visited[name], fitted[name])] == []
        for ours, theirs in zip(state.optimizers, fits.kept_states(method, trainer.optimizers), strict=bool(work)):
            for own, other in zip(ours, theirs, strict=True):
                assert own.keys() == other.keys()
                assert all(torch.equal(torch.as_tensor(own[k]), torch.as_tensor(other[k])) for k in own)
        method._trainer = None
    if visits:
        assert steps > 0


@cache
def of_the_reference(method_name: str) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Rows and final model of three rounds in the reference engine."""
    federation = make_federation(method_name, **flowing(method_name))
    return run_rows(federation), federation.server


@pytest.mark.parametrize(("slots", "replay"), [(3, False), (1, True)], ids=["three-eager", "one-replayed"])
def test_slots_equal_the_reference(method_name: str, slots: int, replay: bool) -> None:
    """Clients that take turns in slots, and steps that are recorded once and replayed, give the same bits."""
    rows, server = of_the_reference(method_name)
    federation = make_federation(method_name, slots=slots, replay=replay, **flowing(method_name))
    assert run_rows(federation) == rows
    different = [k for k, v in federation.server.items() if not torch.equal(v, server[k])]
    assert different == []
    if replay and rows[-1]["visits"]:
        assert sum(len(slot.recorded) for slot in federation.engine.slots) > 0


def test_a_step_reads_nothing_back(method_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step waits for the device: it reads no number back, and no shape depends on data."""
    reads: Counter[str] = Counter()
    compute = fits.Fit.compute

    def counted(self: fits.Fit, batch: Batch, number: int) -> Any:
        with count_host_reads() as found:
            made = compute(self, batch, number)
        reads.update(found)
        return made

    monkeypatch.setattr(fits.Fit, "compute", counted)
    run_rows(make_federation(method_name, rounds=2, **flowing(method_name)))
    assert not reads
