"""Host time of a replayed step besides the replay itself, without the GPU's work."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmark.federation.recording import OperationList
from benchmark.federation.reference import LocalSite
from benchmark.perf.agreement import configured
from benchmark.perf.federations import federation_of
from benchmark.perf.measure import Section, attempt
from benchmark.registry import KINDS, known_names
from datamodules.common.devices import threads
from datamodules.views.batches import Batch, LocalWork
from methods.base import Visit

FEW, MANY, REPEATS = 4, 204, 9
GOAL = 50.0
HEADERS = ["method", "tensors of a batch", "modules", "per step, us", f"at most {GOAL:.0f}"]
NOTE = (
    "CPU time of one thread for a step of a client in a slot when nothing is run in its place: hooks, the search for "
    f"the recording, copies of the batch, of {FEW} x 32 x 32 pixels here, rates, sums that are logged. Cutting the "
    f"views of the batch is not in it. Difference of visits of {MANY} and of {FEW} steps on one and the same batch, "
    f"the best of {REPEATS} each; small CNN, round 1."
)


def host_seconds(method: str, many: int = MANY) -> tuple[float, int, int]:
    """CPU seconds per replayed step, number of tensors in a batch, number of the method's modules.

    Args:
        method: name or dotted path.
        many: steps of the longer of two visits that are compared; the shorter has ``FEW``.
    """
    made = federation_of(configured(method), "cpu", slots=1)
    made.server_phase(0, first=True)
    (slot,) = made.engine.slots  # type: ignore[attr-defined]
    if not made.visits(1):
        return 0.0, 0, len(list(made.method.modules()))
    visit = max(made.visits(1), key=lambda visit: visit.size)
    sent, few = made.engine.send(visit, made.server), list[Batch]()
    whole = LocalSite.batches

    def alike(count: int) -> Any:
        def batches(self: LocalSite, work: LocalWork, number: int) -> Iterator[Batch]:
            if not few:
                first = next(iter(whole(self, work, number)))
                few.append({name: {f: v[:FEW].clone() for f, v in fields.items()} for name, fields in first.items()})
            yield from few * (count if number == 0 else 0)

        return patch.object(LocalSite, "batches", batches)

    def taken(visit: Visit, count: int) -> float:
        with alike(count):
            slot.begin_visit(visit, sent, None)
            began = time.process_time()
            for _ in slot.train():
                pass
            spent = time.process_time() - began
            slot.end_visit()
            return spent

    taken(visit, FEW)  # records the step
    with patch.object(OperationList, "replay"):
        best = {count: min(taken(visit, count) for _ in range(REPEATS)) for count in (FEW, many)}
    tensors = sum(map(len, few[0].values()))
    return (best[many] - best[FEW]) / (many - FEW), tensors, len(list(made.method.modules()))


def row(method: str) -> list[Any]:
    """A line of the table."""
    spent, tensors, modules = host_seconds(method)
    return [method, tensors, modules, 1e6 * spent, "yes" if 1e6 * spent <= GOAL else "no"]


def section() -> list[Section]:
    """Measure every method on the CPU."""
    with threads(1):
        table = Section("Host time of replayed steps", HEADERS, NOTE)
        for method in known_names(KINDS["method"]):
            found = attempt(partial(row, method))
            table.add([found if isinstance(found, list) else [method, "-", "-", found, "-"]])
        return [table]
