"""What is on disk of the runs of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.config import Run, differences
from benchmark.runs.records import Record, look
from benchmark.suites.plan import Plan


@dataclass(frozen=True)
class RunState:
    """What is known of a planned run: its state and, once complete, its record."""

    state: str
    record: Record | None


def collect(plan: Plan, known: Mapping[str, RunState] | None = None) -> dict[str, RunState]:
    """``read_states`` of the runs of a plan."""
    return read_states(plan.runs, known)


def read_states(runs: Mapping[str, Run], known: Mapping[str, RunState] | None = None) -> dict[str, RunState]:
    """State and record of runs by id, from disk; a complete one that is known already is not read again.

    A complete run that was made under other defaults than today's counts as ``outdated``.
    """
    found, known = {}, known or {}
    for key, run in runs.items():
        if key in known and known[key].state == "complete":
            found[key] = known[key]
            continue
        now, record = look(run.folder)
        if record is not None and differences(record["config"], run.config):
            now, record = "outdated", None
        found[key] = RunState(now, record)
    return found
