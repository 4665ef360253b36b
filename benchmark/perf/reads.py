"""Host syncs of a method, per step, visit and round."""

from collections import Counter
from typing import Any

from benchmark.federation.loop import Federation
from benchmark.federation.recording import count_host_reads
from benchmark.perf.agreement import configured, federation
from benchmark.perf.measure import Section, probe
from benchmark.registry import KINDS, known_names
from datamodules.views.batches import Batch
from methods.base import Visit

ROUNDS = 3
HEADERS = ["method", "visits", "steps", "per step", "per visit", "per round beside visits", "in visits"]
NOTE = (
    "Operations that read numbers back to the host, or whose shape depends on data, in the second round (the warm-up "
    "lasts one) of the runs of the section on agreement, by the reference engine. A step: training_step, the "
    "optimiser and on_train_batch_end. A visit: all of it, its steps too. The rest of a round is aggregation, the "
    "server's training and norm statistics; the round is not evaluated. Reads of tensors that live on the host "
    "anyway count too (four for every mean of models); a copy by `.to` is not seen."
)


def in_steps(made: Federation, visit: Visit) -> tuple[int, int]:
    """Count host reads in the steps of a visit, and its steps."""
    engine, found = made.engine, 0
    with engine.seeded(visit):
        site, work = engine.begin_visit(visit, engine.send(visit, made.server), made.clients.get(visit.client))
        fit = site.prepare_fit()

        def step(batch: Batch, number: int) -> None:
            nonlocal found
            with count_host_reads() as counted:
                outputs = fit.compute(batch, number)
            fit.advance_schedules("step")
            with count_host_reads() as further:
                fit.trainer.call("on_train_batch_end", outputs, batch, number)
            found += counted.total() + further.total()

        for _ in fit.run(len(work), lambda number: site.batches(work, number), step):
            pass
    engine.detach()
    return found, fit.steps


def row(method: str, device: str = "cpu") -> list[Any]:
    """Row of a method's reads by place, and the reading operations."""
    made = federation(configured(method, rounds=ROUNDS), device)
    made.server_phase(0, first=True)
    made.run_round(0)
    made.round = 1
    visits, steps, in_all_steps, kinds = made.visits(1), 0, 0, Counter[str]()
    for visit in visits:
        found, taken = in_steps(made, visit)
        steps, in_all_steps = steps + taken, in_all_steps + found
        with count_host_reads() as counted:
            made.engine.run_visit(visit, made.engine.send(visit, made.server), made.clients.get(visit.client))
        kinds += counted
    with count_host_reads() as whole:
        made.run_round(1)
    names = ", ".join(f"{name} {count / len(visits):.3g}" for name, count in kinds.most_common())
    return [
        method,
        len(visits),
        steps,
        in_all_steps / steps if steps else "-",
        kinds.total() / len(visits) if visits else "-",
        whole.total() - kinds.total(),
        names or "-",
    ]


def section() -> list[Section]:
    """Measure every method on the CPU."""
    speed = probe()
    rows = [row(method) for method in known_names(KINDS["method"])]
    return [Section("Host reads", HEADERS, rows, NOTE, (speed, probe()))]
