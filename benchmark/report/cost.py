"""Cost of runs: seconds per round, from this machine's records, and the time left."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.config import Run, RunConfig, differences, identity
from benchmark.console import duration
from benchmark.runs.environment import machine
from benchmark.runs.records import read_record
from benchmark.runs.states import saved_rounds
from datamodules.common.errors import RunError

COSTLESS = {"seed", "scale", "rounds", "report", "last_k", "average_last", "data.init_args.partition_seed"}
"""Options that do not affect the time of a round."""


@dataclass(frozen=True)
class Measured:
    """Timing of rounds run on this machine.

    Args:
        config: identity of the run, as plain data.
        rounds: number of rounds.
        seconds: total seconds.
    """

    config: Mapping[str, Any]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """Seconds per round, and a description of the source."""

    seconds: float
    source: str


@dataclass(frozen=True)
class Part:
    """Runs of a plan that differ only in their seeds.

    Args:
        runs: the runs.
        left: remaining rounds of all runs together.
        most: largest number of remaining rounds of one run.
        estimate: estimated time of a round; ``None`` if unknown.
    """

    runs: tuple[Run, ...]
    left: int
    most: int
    estimate: Estimate | None

    @property
    def seconds(self) -> float:
        """Remaining seconds; 0 if unknown."""
        return self.left * self.estimate.seconds if self.estimate else 0.0


def measured_here(results: Path, gpu: str | None = None) -> list[Measured]:
    """Read the timings of this machine (same processor, number of cores and GPU) from the records below ``results``.

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
                found.append(Measured(record["config"], record["rounds"]["done"], float(record["timing"]["seconds"])))
    return found


def estimate(config: RunConfig, measured: Iterable[Measured]) -> Estimate | None:
    """Estimate seconds per round as the mean over runs of the same configuration; ``None`` if there are none."""
    found = [
        one
        for one in measured
        if all(one.config[name]["class_path"] == getattr(config, name).class_path for name in ("method", "data"))
        and {phrase.partition(":")[0] for phrase in differences(one.config, config)} <= COSTLESS
    ]
    if not found:
        return None
    source = f"{len(found)} record{'s' if len(found) > 1 else ''}"
    return Estimate(sum(one.seconds for one in found) / sum(one.rounds for one in found), source)


def parts(runs: Iterable[Run], states: Mapping[str, str], measured: Sequence[Measured]) -> list[Part]:
    """Group runs that differ only in their seeds, in order, with their remaining rounds.

    Args:
        runs: runs of a plan.
        states: by run id, as in ``runs.states.state``, or ``outdated``.
        measured: timings of this machine.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps({**identity(run.config), "seed": None}, default=str), []).append(run)
    found = []
    for group in groups.values():
        left = [rounds_left(run, states[run.id]) for run in group]
        found.append(Part(tuple(group), sum(left), max(left), estimate(group[0].config, measured)))
    return found


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
    known = [(part, part.estimate) for part in found if part.left and part.estimate]
    unknown = [part for part in found if part.left and not part.estimate]
    if known:
        seconds = sum(part.seconds for part, _ in known)
        longest = max(part.most * per_round.seconds for part, per_round in known)
        at_once = f", {duration(max(seconds / jobs, longest))} with {jobs} at once" if jobs > 1 else ""
        of_all = f" for {sum(part.left for part, _ in known):,} of them" if unknown else ""
        lines.append(f"about {duration(seconds)}{at_once}{of_all}, as measured on this machine")
    if unknown:
        which = f"the other {sum(part.left for part in unknown):,}" if known else "they"
        lines.append(f"how long {which} take on this machine is unknown")
    return lines
