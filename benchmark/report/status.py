"""Progress of a suite's runs, what they cost per round on this machine, and the time left."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from benchmark.config import Run, Runtime, apart, identity
from benchmark.report.formats import number
from benchmark.report.frame import LACKS
from benchmark.runs.console import duration, printable
from benchmark.runs.environment import cores, cpu_model, gpu_name
from benchmark.runs.records import READING, Record, read_record, read_rows, readings
from benchmark.runs.states import saved_rounds
from benchmark.suites.plan import Plan
from datamodules.common.errors import BenchError, RunError

COSTLESS = {"seed", "scale", "rounds", "report", "last_k", "average_last", "data.partition_seed"}
"""Options that do not affect the time of a round."""


def show(plan: Plan, every_run: bool = False) -> None:
    """Print the progress of rows and runs, the counts of states, and the remaining rounds and time.

    Problems with runs are printed below.

    Args:
        plan: the runs of a suite.
        every_run: print one line per run, with its state, rounds and accuracy (the reading reported in tables, over the
            rounds so far). Otherwise one line per row, with the states of its seeds and the mean accuracy of the
            complete ones, followed by the runs that have started and are not complete.
    """
    if not plan.runs:
        print(f"nothing is run at scale {plan.scale}: every row is left out")
        return
    runs = pd.DataFrame([_progress(run, plan.found[key].state) for key, run in plan.runs.items()], index=[*plan.runs])
    accuracy = f"acc ({', '.join(dict.fromkeys(run.config.report for run in plan.runs.values()))})"
    shown = runs if every_run else runs[~runs["state"].isin(["complete", "missing"])]
    lines = [] if every_run else [_row_table(plan, runs, accuracy)]
    if len(shown):
        lines.append(_run_table(plan, shown, accuracy))
    measured = measured_here(next(iter(plan.runs.values())).config.runtime)
    lines += [_counts(runs["state"]), *summary(parts(plan.runs.values(), runs["state"].to_dict(), measured))]
    print(printable("\n".join([*lines, *filter(None, runs["problem"])])))


def _row_table(plan: Plan, runs: pd.DataFrame, accuracy: str) -> str:
    """One line per row: the runs that differ only in the seed."""
    body = []
    for name, keys in plan.of_row.items():
        seeds = runs.loc[list(keys.values())]
        mean = seeds.loc[seeds["state"] == "complete", "accuracy"].mean()
        body.append([name, _counts(seeds["state"]), number(mean)])
    return str(tabulate(body, ["row", "seeds", accuracy], tablefmt="plain", disable_numparse=True))


def _run_table(plan: Plan, runs: pd.DataFrame, accuracy: str) -> str:
    """One line per run."""
    body = []
    for key, line in runs.iterrows():
        run = plan.runs[str(key)]
        rounds = f"{line['done']}/{run.config.rounds}"
        body.append([line["state"], run.folder.name, str(run.config.seed), rounds, number(line["accuracy"]), run.name])
    heads = ["state", "run", "seed", "rounds", accuracy, "row"]
    return str(tabulate(body, heads, tablefmt="plain", disable_numparse=True))


def _counts(states: Iterable[str]) -> str:
    """Count the states, e.g. ``3 complete, 2 missing``."""
    listed = list(states)
    return ", ".join(f"{listed.count(state)} {state}" for state in ("complete", *LACKS) if state in listed)


def _progress(run: Run, state: str) -> dict[str, Any]:
    """State, completed rounds, and the accuracy that tables would report if the run ended here."""
    progress = {"state": state, "done": "?", "accuracy": None, "problem": ""}
    try:
        rows = read_rows(run.folder)
        if state in ("damaged", "failed"):
            error = str(read_record(run.folder)["error"]).strip().splitlines()[-1]
            progress["problem"] = f"{run.folder.name}: {error}"
    except BenchError as damage:
        return {**progress, "problem": str(damage)}
    progress["done"] = str(rows[-1]["round"] + 1) if rows else "0"
    if run.config.report == "averaged":  # only known at the end
        progress["accuracy"] = read_record(run.folder)["averaged"]["acc"] if state == "complete" else None
    elif rows:
        progress["accuracy"] = readings(rows, run.config.last_k)[READING[run.config.report]].get("acc")
    return progress


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


def measured_here(runtime: Runtime) -> list[Record]:
    """Read the records in a runtime's results that are from this machine (same processor, number of cores and GPU)."""
    # The entries of ``environment`` that must agree for times to be comparable.
    here, records = {"cpu": cpu_model(), "cores": cores(), "gpu": gpu_name(runtime.accelerator)}, []
    for file in sorted(Path(runtime.results_dir, "runs").glob("*/record.json")):
        with suppress(RunError):  # skip damaged records
            record = read_record(file.parent)
            there = {name: record["environment"].get(name) for name in here}
            if there == here and record["rounds"]["done"]:
                records.append(record)
    return records


def parts(runs: Iterable[Run], states: Mapping[str, str], measured: Sequence[Record]) -> list[Part]:
    """Group runs that differ only in their seeds, in order, with their remaining rounds.

    Args:
        runs: runs of a plan.
        states: by run id, as in ``runs.states.state``, or ``outdated``.
        measured: records of this machine.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps({**identity(run.config), "seed": None}), []).append(run)
    grouped = []
    for group in groups.values():
        left = [rounds_left(run, states[run.id]) for run in group]
        config = identity(group[0].config)
        method = config["method"]["class_path"]
        alike = [record for record in measured if record["config"]["method"]["class_path"] == method]
        same = [record for record in alike if apart(record["config"], config).keys() <= COSTLESS]
        grouped.append(Part(tuple(group), sum(left), max(left), same))
    return grouped


def rounds_left(run: Run, state: str) -> int:
    """Return the remaining rounds of a run, given its state."""
    if state == "complete":
        return 0
    done = 0 if state == "missing" else saved_rounds(run.folder)
    if state == "running":
        with suppress(RunError):
            done = int(read_record(run.folder)["rounds"]["done"])
    return run.config.rounds - done


def summary(of_plan: Sequence[Part], jobs: int = 1) -> list[str]:
    """Summarise totals in a few lines.

    Args:
        of_plan: the parts of a plan.
        jobs: number of concurrent runs.
    """
    runs = [run for part in of_plan for run in part.runs]
    total, left = sum(run.config.rounds for run in runs), sum(part.left for part in of_plan)
    remaining = f"{_counted(left, 'round')} {'is' if left == 1 else 'are'} left"
    lines = [f"{_counted(len(runs), 'run')}, {_counted(total, 'round')}; {remaining}"]
    timed = [part for part in of_plan if part.left and part.records]
    untimed = [part for part in of_plan if part.left and not part.records]
    if timed:
        seconds = sum(part.seconds for part in timed)
        longest = max(part.most * part.seconds / part.left for part in timed)
        at_once = f", {duration(max(seconds / jobs, longest))} with {jobs} at once" if jobs > 1 else ""
        of_all = f" for {sum(part.left for part in timed):,} of them" if untimed else ""
        lines.append(f"about {duration(seconds)}{at_once}{of_all}, as measured on this machine")
    if untimed:
        which = f"the other {sum(part.left for part in untimed):,}" if timed else "they"
        lines.append(f"how long {which} take on this machine is unknown")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
