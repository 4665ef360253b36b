"""The reference run of a method, made once, which most checks compare with, and how runs are compared."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from benchmark.contract.attributes import Values, changed, common_values, places_of, same, values_of
from benchmark.contract.federations import class_of, contract_federation
from benchmark.federation.loop import Federation
from methods.base import FedMethod

Method = str | type[FedMethod]
Row = dict[str, Any]


@dataclass
class ReferenceRun:
    """What the reference engine makes of a method in the contract's three rounds.

    Args:
        rows: the lines of the record, by round.
        servers: the server's tensors before the first round and after each.
        states: what a checkpoint before the first round and after each would hold, as bytes.
        attributes: values of unregistered attributes at the same moments.
        averaged: the reading of the averaged model of the last two rounds.
        losses: cross-entropy of the test set at the start, before the first round and after each.
        untouched: values of class attributes and globals before the run.
    """

    rows: list[Row] = field(default_factory=list)
    servers: list[dict[str, Tensor]] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    attributes: list[Values] = field(default_factory=list)
    averaged: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    untouched: Values = field(default_factory=dict)


def reference(method: Method) -> ReferenceRun:
    """The reference run of a method, made at the first call. It must not be changed."""
    return _reference(cast(Any, method))


@cache
def _reference(method: Method) -> ReferenceRun:
    federation, run = contract_federation(method), ReferenceRun()
    run.untouched = common_values(federation.method)
    federation.become_server()
    run.losses.append(test_loss(federation))
    federation.server_phase(0, first=True)
    _note(federation, run)
    while federation.round < federation.rounds:
        run.rows += rounds_until(federation, federation.round + 1)
        _note(federation, run)
    run.averaged = federation.evaluate_averaged()
    return run


def _note(federation: Federation, run: ReferenceRun) -> None:
    run.losses.append(test_loss(federation))
    buffer = io.BytesIO()
    torch.save(federation.state_dict(), buffer)
    run.states.append(buffer.getvalue())
    run.servers.append(federation.server)
    run.attributes.append(values_of(places_of(federation.method)))


def resumed(method: Method, rounds: int, **args: Any) -> Federation:
    """A new federation that continues the reference run after this many rounds."""
    federation = contract_federation(method, **args)
    federation.load_state_dict(torch.load(io.BytesIO(reference(method).states[rounds]), weights_only=True))
    return federation


def rounds_until(federation: Federation, stop: int) -> list[Row]:
    """Run up to round ``stop`` (exclusive); returns the rows without their timing."""
    if federation.round == 0 and federation.server_state is None:
        federation.server_phase(0, first=True)
    rows = []
    while federation.round < stop:
        row = federation.run_round(federation.round)
        federation.round += 1
        rows.append(row or {})
    return rows


@torch.no_grad()
def test_loss(federation: Federation) -> float:
    """Mean cross-entropy of the test set under ``predict`` of the method as it stands, in nats."""
    method, data = federation.method, federation.data
    method.eval()
    with method.autocast():
        found = torch.cat([method.predict(block()) for _, block in data.test_blocks(method.eval_batch)])
    federation.engine.train_mode()
    right = found.double().gather(1, data.test_labels[:, None])
    return float(-right.clamp_min(1e-12).log().mean())


test_loss.__test__ = False  # type: ignore[attr-defined]


def different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that are not equal bit for bit, or are in one of the two only."""
    both = [name for name in expected if name in found and not same(found[name], expected[name])]
    return both + sorted(set(found) ^ set(expected))


def different_rows(found: Sequence[Row], expected: Sequence[Row], but: Iterable[str] = ()) -> list[str]:
    """How rows differ, in words; columns that begin with one of ``but`` do not count."""
    skipped = tuple(but)
    notes = []
    for row, other in zip(found, expected, strict=True):
        for name in sorted(set(row) | set(other)):
            if not name.startswith(skipped) and row.get(name) != other.get(name):
                notes.append(f"round {row['round']}: {name} is {row.get(name)} instead of {other.get(name)}")
    return notes


def require_equal(method: Method, because: str, *notes: Sequence[str]) -> None:
    """Fail if a check has found differences.

    Args:
        method: the one that was checked.
        because: what the method does wrong, and what to do about it.
        notes: the differences, in words.

    Raises:
        AssertionError: there are differences; names the first three.
    """
    found = [note for part in notes for note in part]
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    assert not found, f"{class_of(method).__name__}: {because} (different: {'; '.join(found[:3])}{more})"


def culprits(make: Callable[[], Federation], kept: Values, differs: Callable[[Federation], object]) -> str:
    """Which unregistered attribute causes a difference, as a sentence for an error.

    Args:
        make: a new federation, in which the difference does not show.
        kept: values of the attributes where it does show.
        differs: runs a federation and returns whether the difference shows.
    """
    found = []
    for label in changed(kept, values_of(places_of(make().method))):
        federation = make()
        if label in kept:
            place, value = kept[label]
            place.within(federation.method).set(value)
            if differs(federation):
                found.append(label)
    return f" It is {' or '.join(found)}." if found else ""
