"""Cost of runs: seconds per round, from this machine's records, and the time left."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.config import Run, RunConfig, differences, identity
from benchmark.runs.console import duration
from benchmark.runs.environment import machine
from benchmark.runs.records import Record, read_record
from benchmark.runs.states import saved_rounds
from datamodules.common.errors import RunError

COSTLESS = {"seed", "scale", "rounds", "report", "last_k", "average_last", "data.init_args.partition_seed"}
"""Options that do not affect the time of a round."""


@dataclass(frozen=True)
class Part:
    """Runs of a plan that differ only in their seeds.

    Args:
        runs: the runs.
        left: remaining rounds of all runs together.
        most: largest number of remaining rounds of one run.
        records: those of the same configuration on this machine.
    """

    runs: tuple[Run, ...]
    left: int
    most: int
    records: Sequence[Record]

    @property
    def per_round(self) -> float | None:
        """Mean seconds of a round; ``None`` if there is no record."""
        seconds = sum(record["timing"]["seconds"] for record in self.records)
        return seconds / sum(record["rounds"]["done"] for record in self.records) if self.records else None

    @property
    def seconds(self) -> float:
        """Remaining seconds; 0 if unknown."""
        return self.left * (self.per_round or 0.0)


def measured_here(results: Path, gpu: str | None = None) -> list[Record]:
    """Read the records below ``results`` from this machine (same processor, number of cores and GPU).

    Args:
        results: folder that holds ``runs/``.
        gpu: name of the GPU used by runs, if any.
    """
    here, found = machine(gpu), []
    for file in sorted((results / "runs").glob("*/record.json")):
        with suppress(RunError):  # skip damaged records
            record = read_record(file.parent)
            known = {name: record["environment"].get(name) for name in here}
            if known == here and record["rounds"]["done"]:
                found.append(record)
    return found


def parts(runs: Iterable[Run], states: Mapping[str, str], measured: Sequence[Record]) -> list[Part]:
    """Group runs that differ only in their seeds, in order, with their remaining rounds.

    Args:
        runs: runs of a plan.
        states: by run id, as in ``runs.states.state``, or ``outdated``.
        measured: records of this machine.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps({**identity(run.config), "seed": None}, default=str), []).append(run)
    found = []
    for group in groups.values():
        left = [rounds_left(run, states[run.id]) for run in group]
        same = [record for record in measured if _costs_the_same(record["config"], group[0].config)]
        found.append(Part(tuple(group), sum(left), max(left), same))
    return found


def _costs_the_same(recorded: Mapping[str, Any], config: RunConfig) -> bool:
    classes = all(recorded[name]["class_path"] == getattr(config, name).class_path for name in ("method", "data"))
    return classes and {phrase.partition(":")[0] for phrase in differences(recorded, config)} <= COSTLESS


def rounds_left(run: Run, state: str) -> int:
    """Return the remaining rounds of a run, given its state."""
    total, path = run.config.rounds, run.folder
    if state in ("complete", "missing"):
        return 0 if state == "complete" else total
    if state == "running":
        with suppress(RunError):
            return total - int(read_record(path)["rounds"]["done"])
    return total - (saved_rounds(path) or 0)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def summary(found: Sequence[Part], jobs: int = 1) -> list[str]:
    """Summarise totals in a few lines.

    Args:
        found: the parts of a plan.
        jobs: number of concurrent runs.
    """
    runs = [run for part in found for run in part.runs]
    total, left = sum(run.config.rounds for run in runs), sum(part.left for part in found)
    remaining = f"{_counted(left, 'round')} {'is' if left == 1 else 'are'} left"
    lines = [f"{_counted(len(runs), 'run')}, {_counted(total, 'round')}; {remaining}"]
    known = [part for part in found if part.left and part.records]
    unknown = [part for part in found if part.left and not part.records]
    if known:
        seconds = sum(part.seconds for part in known)
        longest = max(part.most * part.seconds / part.left for part in known)
        at_once = f", {duration(max(seconds / jobs, longest))} with {jobs} at once" if jobs > 1 else ""
        of_all = f" for {sum(part.left for part in known):,} of them" if unknown else ""
        lines.append(f"about {duration(seconds)}{at_once}{of_all}, as measured on this machine")
    if unknown:
        which = f"the other {sum(part.left for part in unknown):,}" if known else "they"
        lines.append(f"how long {which} take on this machine is unknown")
    return lines
