"""Measurements on a GPU: agreement of engines and devices, speed of the engines, goals, and profiles.

Every measurement is a separate task: one that fails becomes a line with the reason, and the others continue.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmark.perf import agreement, engines, goals, graphs, profiles
from benchmark.perf.federations import arithmetic
from benchmark.perf.goals import STEADY, Goal
from benchmark.perf.measure import FAILED, Section, attempt, probe
from benchmark.perf.worker import TaskFailed
from benchmark.registry import KINDS, known_names

Do = Callable[..., Any]
"""Function that runs a task, given allowed seconds, a function and its arguments; raises ``TaskFailed``."""

GRACE_S = 20.0


@dataclass(frozen=True)
class GPUPlan:
    """Measurements and their sizes.

    Args:
        plain: methods with plain supervised steps, whose visits are timed.
        goals: rows of the papers' tables with their limits.
        device: ``cuda``; ``cpu`` for a trial of this code.
        seconds: seconds for each part.
        checked: methods whose agreement is checked; default: all.
        precisions: see ``arithmetic``.
        cases: networks and images per step.
        clients: clients per round in timed visits.
        batches: batches per client.
        slots: numbers of slots.
        goal_slots: numbers of slots for the goals.
        profile_slots: number of slots (and visits) for the profiles.
        sizes: sizes of the runs whose agreement is checked.
        replays: replays of a recording of many steps.
        averaged: rounds of a goal that are averaged at most.
        speed: see ``Section``.
    """

    plain: Sequence[str]
    goals: Sequence[Goal]
    device: str = "cuda"
    seconds: float = 540.0
    checked: Sequence[str] = field(default_factory=lambda: known_names(KINDS["method"]))
    precisions: Sequence[str] = ("32-true", "tf32", "bf16-mixed")
    cases: Sequence[tuple[str, int]] = (
        ("small_cnn", 10),
        ("small_cnn", 64),
        ("wrn28_2", 32),
        ("resnet9", 10),
        ("resnet18", 64),
    )
    clients: int = 16
    batches: int = 4
    slots: Sequence[int] = (1, 2, 4, 8, 16)
    goal_slots: Sequence[int] = (16, 4)
    profile_slots: int = 4
    sizes: agreement.Sizes = agreement.FULL
    replays: int = graphs.REPLAYS
    averaged: int = STEADY
    speed: Callable[[], float] = probe


def trial(plan: GPUPlan) -> GPUPlan:
    """Shrink a plan to tiny sizes on the CPU, to try the code; its numbers are meaningless."""
    return replace(
        plan,
        goals=[replace(goal, tiny=True) for goal in plan.goals],
        device="cpu",
        precisions=("32-true", "bf16-mixed"),
        cases=(("small_cnn", 4),),
        clients=2,
        batches=3,
        slots=(1, 2),
        goal_slots=(2,),
        profile_slots=2,
        sizes=agreement.Sizes(images=150, clients=6, batch=8),
        replays=1,
        averaged=1,
    )


class PartTasks:
    """The tasks of a part of the plan, and their tables.

    Args:
        plan: the plan.
        do: runs a task.
    """

    def __init__(self, plan: GPUPlan, do: Do) -> None:
        self.plan, self.do, self.deadline = plan, do, time.monotonic() + plan.seconds

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self.deadline - time.monotonic()

    def table(self, title: str, headers: Sequence[str], note: str) -> Section:
        """Create a table of the part; its title names the device."""
        name = torch.cuda.get_device_name() if self.plan.device == "cuda" else "trial on the CPU"
        return Section(f"{title} ({name})", headers, note, self.plan.speed)

    def rows(self, label: Sequence[Any], task: Callable[..., Any], *args: Any) -> list[list[Any]]:
        """Run a task and return its line or lines, or a line with its label and the error."""
        if self.left <= 0:
            return [[*label, f"{FAILED}the time of this part was up"]]
        try:
            found = self.do(self.left + GRACE_S, task, *args)
        except TaskFailed as failure:
            return [[*label, f"{FAILED}{failure}"]]
        return found if isinstance(found[0], list) else [found]


def check_agreement(part: PartTasks) -> Iterator[Section]:
    """Check engines and devices, method by method."""
    table = part.table("Agreement of engines and devices", agreement.HEADERS, agreement.NOTE)
    for method in part.plan.checked:
        yield table.add(part.rows([method], agreement.row, method, part.plan.device, part.plan.sizes))


def time_engines(part: PartTasks) -> Iterator[Section]:
    """Time the reference and slots, by network, precision and number of slots."""
    plan = part.plan
    note = (
        f"Milliseconds for the visits of {plan.clients} clients of {plan.batches} full batches each, once, after a "
        "warm-up in which steps are recorded. 32-true is what runs use: PyTorch's settings, with TF32 in convolutions "
        "only. tf32: in matrix products, too."
    )
    names = [f"K = {slots}, ms" for slots in plan.slots]
    headers = ["network", "batch", "precision", "replay", "reference, ms", *names, "reference / best"]
    for method in plan.plain:
        table = part.table(f"Engines, visits of `{method}`", headers, note)
        for precision, (network, batch), replay in product(plan.precisions, plan.cases, (False, True)):
            label = [network, batch, precision, "yes" if replay else "no"]
            yield table.add(part.rows(label, engine_row, plan, method, label, replay))


def engine_row(plan: GPUPlan, method: str, label: Sequence[Any], replay: bool) -> list[Any]:
    """Measure a line; if one engine fails, the others keep their numbers."""
    network, batch, precision, _ = label
    sizes = {"device": plan.device, "clients": plan.clients, "batches": plan.batches}
    chosen: list[dict[str, Any]] = [{}, *({"slots": n, "replay": replay} for n in plan.slots)]
    taken = [attempt(partial(engines.alone, precision, method, network, batch, **sizes, **own)) for own in chosen]
    shown = [cell if isinstance(cell, str) else 1000 * cell for cell in taken]
    if isinstance(taken[0], str) or not (fine := [cell for cell in taken[1:] if not isinstance(cell, str)]):
        return [*label, *shown, "-"]
    return [*label, *shown, taken[0] / min(fine)]


def time_graphs(part: PartTasks) -> Iterator[Section]:
    """Time one step per recording against many, and against several streams, by network and precision."""
    plan = part.plan
    table = part.table("Steps in one recording", graphs.HEADERS, graphs.NOTE)
    for precision, (network, batch) in product(plan.precisions, plan.cases):
        label = [network, batch, precision]
        yield table.add(part.rows(label, graphs.row, *label, plan.device, plan.replays))


def time_goals(part: PartTasks) -> Iterator[Section]:
    """Measure the papers' rows against their limits."""
    plan = part.plan
    if not plan.goals:
        return
    table = part.table("Goals: rows of the papers' tables, random images", goals.HEADERS, goals.NOTE)
    tasks = [(g, p, k) for k in plan.goal_slots for p in plan.precisions for g in plan.goals]
    for number, (goal, precision, slots) in enumerate(tasks):
        allowed = part.left / (len(tasks) - number) / 2  # the rest is for the data and the first rounds
        label = [goal.name, goal.rounds, precision, slots]
        given = (goal, precision, slots, plan.device, allowed, plan.averaged)
        yield table.add(part.rows(label, goals.measured, *given))


def profile(part: PartTasks) -> Iterator[Section]:
    """Profile the kernels of replayed visits, and the GPU's idle time."""
    plan = part.plan
    precision = plan.precisions[min(1, len(plan.precisions) - 1)]
    note = (
        f"{plan.profile_slots} visits of one local epoch in as many slots with replay, {precision}, after they were "
        "recorded. Idle: share of the wall time under the profiler in which no kernel runs. Kernels of several streams "
        "overlap; shares are of the sum of their times."
    )
    headers = ["visits", "kernel", "calls", "% of busy time", "% of wall time"]
    table = part.table("Kernels of replayed visits", headers, note)
    for goal in plan.goals:
        yield table.add(part.rows([goal.name], profile_rows, goal, precision, plan.profile_slots, plan.device))


def profile_rows(goal: Goal, precision: str, slots: int, device: str) -> list[list[Any]]:
    """Profile the visits of a goal's round."""
    with arithmetic(precision) as known:
        made = goals.federation(goal, known, slots, device)
        if made.method.hparams.get("local_epochs"):
            made.method.hparams["local_epochs"] = 1
        chosen = made.visits(goals.first_round(made))[:slots]
        for _ in range(2):
            made.engine.run_visits(chosen, made.server, {})
        return [[goal.name, *row] for row in profiles.kernels(made, chosen, device)]


PARTS: dict[str, Callable[[PartTasks], Iterator[Section]]] = {
    "agreement": check_agreement,
    "engines": time_engines,
    "graphs": time_graphs,
    "goals": time_goals,
    "profiles": profile,
}


def measure(plan: GPUPlan, parts: Sequence[str], do: Do, publish: Callable[[Section], None]) -> list[Section]:
    """Measure parts of the plan, in order.

    Args:
        plan: the plan.
        parts: names of ``PARTS``.
        do: runs a task.
        publish: called with a section after every new line.

    Returns:
        the sections as they are in the end.
    """
    found = dict[str, Section]()
    for name in parts:
        for section in PARTS[name](PartTasks(plan, do)):
            found[section.title] = section
            publish(section)
    return list(found.values())
