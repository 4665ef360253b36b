"""Checks of steps under several engines: a plain ``Trainer``, the reference engine, slots, slots with replay."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmark.contract.federations import ROUNDS, class_of, contract_federation, quiet_lightning
from benchmark.contract.reference import (
    Method,
    different,
    different_rows,
    reference,
    require_equal,
    resumed,
    rounds_until,
)
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from benchmark.federation.optimizers import OptimizerStates, kept_states, load_states
from benchmark.federation.reference import LocalSite
from benchmark.federation.slots import RecordedStep, SlotsEngine
from datamodules.views.batches import Batch, LocalWork
from methods.base import Scope, Visit

SCOPES: tuple[Scope, ...] = ("shared", "personal", "local", "server")
ELSEWHERE = 5  # how far from its own place in the visit a step is recorded, in steps and epochs


class Visited(IterableDataset[Batch]):
    """A client's local epochs, one per iteration."""

    def __init__(self, site: LocalSite, work: LocalWork) -> None:
        self.site, self.work, self.epochs = site, work, 0

    def __iter__(self) -> Iterator[Batch]:
        self.epochs += 1
        return self.site.batches(self.work, self.epochs - 1)


class TakeUp(L.Callback):
    """Loads the optimiser states that the client has kept into the optimisers of a Trainer."""

    def __init__(self, states: OptimizerStates) -> None:
        self.states = states

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Before the first step."""
        load_states(trainer.optimizers, self.states)


def some_visits(federation: Federation) -> list[Visit]:
    """Visits of the next round: one for each kind of client, both new clients and ones that have taken part before."""
    chosen: dict[Any, Visit] = {}
    for visit in federation.visits(2):
        chosen.setdefault((visit.labelled, visit.first), visit)
    return list(chosen.values())


def check_a_visit_is_a_fit(method: Method) -> None:
    """``Trainer.fit`` over the batches of a client's visit takes the same steps, to the bit."""
    federation = resumed(method, 2)
    engine, module = federation.engine, federation.method
    visits = some_visits(federation)
    steps = 0
    for visit in visits:
        sent, kept = engine.send(visit, federation.server), federation.clients.get(visit.client)
        handed_on = engine.shared_optimizer_state
        _, state = engine.run_visit(visit, sent, kept)
        left, engine.shared_optimizer_state = state.optimizers or engine.shared_optimizer_state, handed_on
        visited = module.tensors(*SCOPES)
        with engine.seeded(visit), quiet_lightning():
            site, work = engine.begin_visit(visit, sent, kept)
            trainer = L.Trainer(
                max_epochs=len(work),
                accelerator="cpu",
                logger=False,
                callbacks=[TakeUp(site.optimizer_states)],
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            if work:
                trainer.fit(module, DataLoader(Visited(site, work), batch_size=None))
                steps += trainer.global_step
            module.make_upload(site)
        fitted = module.tensors(*SCOPES)
        require_equal(method, "a plain Trainer over a client's batches takes other steps", different(visited, fitted))
        pairs = zip(left, kept_states(module, trainer.optimizers), strict=bool(work))
        require_equal(
            method,
            "a plain Trainer over a client's batches leaves other states in the optimisers",
            [note for number, (ours, theirs) in enumerate(pairs) for note in different_states(number, ours, theirs)],
        )
        module.trainer = None
    assert steps > 0 or not visits, f"{class_of(method).__name__}: none of its clients takes a step"


def different_states(number: int, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """Which states of an optimiser's parameters are not equal bit for bit, by number of the optimiser and place."""
    if len(ours) != len(theirs):
        return [f"optimiser {number}: states of {len(theirs)} parameters instead of {len(ours)}"]
    return [
        f"optimiser {number}, parameter {place}: {name}"
        for place, (own, other) in enumerate(zip(ours, theirs, strict=True))
        for name in sorted(own.keys() | other.keys())
        if name not in own
        or name not in other
        or not torch.equal(torch.as_tensor(own[name]), torch.as_tensor(other[name]))
    ]


def _equals_the_reference(method: Method, slots: int, replay: bool, because: str) -> None:
    run, rounds = reference(method), ROUNDS if replay else 2  # a client with few batches replays them in the last one
    federation = contract_federation(method, slots=slots, replay=replay)
    with patch.object(RecordedStep, "replay", autospec=True, side_effect=RecordedStep.replay) as replays:
        rows = rounds_until(federation, rounds)
    differences = different_rows(rows, run.rows[:rounds]), different(federation.server, run.servers[rounds])
    require_equal(method, because, *differences)
    assert isinstance(federation.engine, SlotsEngine)
    if replay and any(slot.met for slot in federation.engine.slots):  # else its optimisers cannot be recorded
        assert replays.call_count, (
            f"{class_of(method).__name__}: no step is replayed, because no two batches of a client have the same shapes"
        )


def check_slots_equal_the_reference(method: Method) -> None:
    """Clients that take turns in three slots give the same bits."""
    _equals_the_reference(
        method,
        slots=3,
        replay=False,
        because="clients that train in three copies of the method give another result: only registered tensors travel "
        "with a client",
    )


def check_replayed_steps_equal_the_reference(method: Method) -> None:
    """Steps that are recorded once and replayed give the same bits, whichever step of a visit was recorded."""
    with patch.object(RecordedStep, "__init__", recorded_elsewhere(RecordedStep.__init__)):
        _equals_the_reference(
            method,
            slots=1,
            replay=True,
            because="a step that is recorded and replayed gives another result: it reads or writes something other "
            "than its batch and registered tensors (batch_idx, current_epoch and global_step are Python numbers), or "
            "Python code takes a decision that must be left to tensors",
        )


def recorded_elsewhere(init: Callable[..., None]) -> Callable[..., None]:
    """``init``, which records a step, made to record it as another step of the visit: one recording serves all."""

    def recorded(self: RecordedStep, step: Any, batch: Batch, slot: Any, fit: Fit) -> None:
        counters = ((fit, "batch_idx"), (fit.trainer, "current_epoch"), (fit.trainer, "global_step"))
        for owner, name in counters:
            setattr(owner, name, getattr(owner, name) + ELSEWHERE)
        init(self, step, batch, slot, fit)
        for owner, name in counters:
            setattr(owner, name, getattr(owner, name) - ELSEWHERE)

    return recorded
