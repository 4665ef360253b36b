"""Measurements on a GPU: agreement of engines and devices, replay against the reference engine.

Every line is a task in a process of its own: one that fails becomes a line with the reason, and the others go on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmark.config import RunConfig
from benchmark.perf import agreement
from benchmark.perf.federations import config_of, federation_of, synchronize
from benchmark.perf.measure import Section, TaskFailed, alone, attempt, interleaved
from benchmark.registry import KINDS, known_names

GRACE_S = 20.0
PRECISIONS = ("32-true", "bf16-mixed")
CLIENTS, BATCHES = 16, 4


@dataclass(frozen=True)
class GPUPlan:
    """Measurements and their sizes.

    Args:
        timed: methods whose visits are timed, with plain supervised steps.
        seconds: seconds for each part.
        checked: methods whose agreement is checked; default: all.
        device: ``cuda``; ``cpu`` for a trial of this code.
        cases: networks and images per step.
        slots: numbers of slots.
    """

    timed: Sequence[str]
    seconds: float = 540.0
    checked: Sequence[str] = field(default_factory=lambda: known_names(KINDS["method"]))
    device: str = "cuda"
    cases: Sequence[tuple[str, int]] = (("small_cnn", 64), ("wrn28_2", 32), ("resnet9", 100), ("resnet18", 64))
    slots: Sequence[int] = (1, 4, 8)


def trial(plan: GPUPlan) -> GPUPlan:
    """Shrink a plan to tiny sizes on the CPU, to try the code; its numbers are meaningless."""
    return replace(plan, device="cpu", cases=[("small_cnn", 4)], slots=(1, 2))


class Part:
    """A part of the plan, with a time limit.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: GPUPlan) -> None:
        self.plan, self.deadline = plan, time.monotonic() + plan.seconds

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self.deadline - time.monotonic()

    def table(self, title: str, headers: Sequence[str], note: str) -> Section:
        """Create a table; its title names the device."""
        name = torch.cuda.get_device_name() if self.plan.device == "cuda" else "trial on the CPU"
        return Section(f"{title} ({name})", headers, note)

    def row(self, label: Sequence[Any], task: Callable[..., list[Any]], *args: Any) -> list[Any]:
        """Run a task and return its line, or a line with its label and the error."""
        if self.left <= 0:
            return [*label, "failed: the time of this part was up"]
        try:
            return list(alone(task, *args, allowed=self.left + GRACE_S))
        except TaskFailed as failure:
            return [*label, f"failed: {failure}"]


def check_agreement(part: Part) -> Iterator[Section]:
    """Check engines and devices, method by method."""
    table = part.table("Agreement of engines and devices", agreement.HEADERS, agreement.NOTE)
    for method in part.plan.checked:
        yield table.add(part.row([method], agreement.row, method, part.plan.device))


def time_engines(part: Part) -> Iterator[Section]:
    """Time the reference and slots, by network, precision and number of slots."""
    plan = part.plan
    note = (
        f"Milliseconds for the visits of {CLIENTS} clients of {BATCHES} full batches each, after a warm-up in which "
        "steps are recorded."
    )
    names = [f"K = {slots}, ms" for slots in plan.slots]
    headers = ["network", "batch", "precision", "replay", "reference, ms", *names, "reference / best"]
    for method in plan.timed:
        table = part.table(f"Engines, visits of `{method}`", headers, note)
        for precision, (network, batch), replay in product(PRECISIONS, plan.cases, (False, True)):
            label = [network, batch, precision, "yes" if replay else "no"]
            yield table.add(part.row(label, engine_row, plan, method, label, replay))


def engine_row(plan: GPUPlan, method: str, label: Sequence[Any], replay: bool) -> list[Any]:
    """Measure a line; if one engine fails, the others keep their numbers."""
    network, batch, precision, _ = label
    data = {"images": CLIENTS * BATCHES * batch, "num_clients": CLIENTS, "labelled_clients": CLIENTS}
    config = config_of(method, {"batch_size": batch}, data, model=network, precision=precision)
    engines: list[dict[str, Any]] = [{}, *({"slots": n, "replay": replay} for n in plan.slots)]
    taken = [attempt(partial(visits_ms, config, plan.device, **engine)) for engine in engines]
    if isinstance(taken[0], str) or not (fine := [cell for cell in taken[1:] if not isinstance(cell, str)]):
        return [*label, *taken, "-"]
    return [*label, *taken, taken[0] / min(fine)]


def visits_ms(config: RunConfig, device: str, **engine: Any) -> float:
    """Milliseconds of the visits of a round, until the device has finished; ``engine``: see ``federation_of``."""
    made = federation_of(config, device, **engine)
    planned = made.visits(0)

    def work() -> None:
        made.engine.run_visits(planned, made.server, {})
        synchronize(device)

    return 1000 * interleaved({"it": work}, repeats=1)["it"]


PARTS: dict[str, Callable[[Part], Iterator[Section]]] = {
    "agreement": check_agreement,
    "engines": time_engines,
}


def section(plan: GPUPlan, parts: Sequence[str]) -> Iterator[Section]:
    """Measure parts of the plan, in order; yield a section after each of its lines."""
    for name in parts:
        yield from PARTS[name](Part(plan))
