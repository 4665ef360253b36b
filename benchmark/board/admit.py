"""Admission of a leaderboard's settings: a setting is ranked only if its bounds and its premise hold (RULES.md).

It runs only bounds, with separate seeds and the rates of their papers. Methods are not considered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmark.board.tune import is_done
from benchmark.config import Run, Runtime, from_dict
from benchmark.launch import pool
from benchmark.report.frame import rounds_of
from benchmark.report.statistics import late_rise
from benchmark.runs.environment import hardware
from benchmark.runs.records import READING, Record, code_versions, read_record
from benchmark.runs.states import state
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError, RunError

FOLDER = "admission"
GAP = 15.0
"""Minimum gain of all labels over the reference, in points."""
RISE = 1.0
"""Maximum rise of reference and bound over the last quarter of the rounds, in points."""
PREMISE = 3.0
"""Minimum gain from unlabelled data in centralised training, in points."""


@dataclass(frozen=True)
class Candidate:
    """A setting to be admitted.

    Args:
        name: ``table/dataset``.
        reference: label of the reference.
        bound: label of the bound that uses all labels.
        supervised: label of the central row that trains on labelled data only.
        semi_supervised: label of the central row that also uses the unlabelled data.
        runs: runs needed for admission by these four labels, one per seed.
    """

    name: str
    reference: str
    bound: str
    supervised: str
    semi_supervised: str
    runs: Mapping[str, Sequence[Run]]


def candidates(suite: Suite, scale: str, runtime: Runtime) -> list[Candidate]:
    """Return the settings of a scale: its tables with a reference, on each of their data sets.

    The scale's entry ``admission`` gives the ``seeds`` and, under ``central``, two ``labels`` (supervised and
    semi-supervised) and the layers of options that put all data in one place. The first of a table's bounds is the one
    that uses all labels.

    Raises:
        ConfigError: the scale has no such entry, a table with a reference has no bound, or its reference or bound is a
            central row.
    """
    spec = suite.scale(scale).admission
    if spec is None:
        raise ConfigError(f"{suite.where}: scale {scale} has no entry `admission`, so there is nothing to admit")
    supervised, semi_supervised = spec.central.labels
    own = replace(runtime, results_dir=str(Path(runtime.results_dir) / FOLDER))
    found = []
    for table in filter(lambda table: table.reference, suite.tables):
        if not table.bounds:
            raise ConfigError(f"{suite.where}, table {table.number}: admission needs a row under `bounds`")
        reference, bound = table.reference, table.bounds[0]
        if both := {reference, bound} & {*spec.central.labels}:
            raise ConfigError(
                f"{suite.where}, table {table.number}: {', '.join(both)} cannot be a central row, too: give that one a "
                "label of its own"
            )
        for dataset in dict.fromkeys(row.dataset for row in table.rows):
            name = f"{table.number}/{dataset}"
            known = {row.method: row for row in table.rows if row.dataset == dataset}
            values = {label: suite.values(known[label], scale, tuned=False) for label in (reference, bound)}
            for label in spec.central.labels:
                row = Row(table.number, dataset, label, {}, {})
                values[label] = suite.values(row, scale, tuned=False, last=spec.central)
            runs = {}
            for label, of_label in values.items():
                first = Run.of(from_dict(of_label), f"admit {name}/{label}")
                runs[label] = [first.replace(seed=seed, runtime=own) for seed in spec.seeds]
            found.append(Candidate(name, reference, bound, supervised, semi_supervised, runs))
    return found


def admit(suite: Suite, scale: str, runtime: Runtime, jobs: int) -> dict[str, Any]:
    """Run what is missing, judge every setting, and write the verdicts beside the suite.

    Returns:
        The verdicts by ``table/dataset``; see ``judged``.

    Raises:
        ConfigError: the suite is part of an installed package, or a complete run was made by other code of its method
            (``is_done``); or see ``candidates``.
        RunError: a run failed or did not end; nothing is written.
    """
    suite.check_writable("verdicts", "admit")
    suite.admitted.own(scale)  # so that it is not found damaged when the runs are over
    asked = candidates(suite, scale, runtime)
    every = {run.id: run for one in asked for runs in one.runs.values() for run in runs}
    missing = [run for run in every.values() if not is_done(run)]
    if missing:
        pool.run_all(missing, jobs)
    without = [run for run in missing if state(run.folder) != "complete"]
    if without:
        named = ", ".join(f"{run.cells[0]}, seed {run.config.seed} ({run.folder})" for run in without[:3])
        raise RunError(f"{len(without)} runs without a result: {named}. Fix what failed and run admit again")
    made = {one.name: judged(one, suite.reading(scale)) for one in asked}
    suite.admitted.add(scale, made)
    return made


def judged(one: Candidate, report: str) -> dict[str, Any]:
    """Compute the figures of a setting with complete runs, in points, and whether it is admitted.

    Args:
        one: the setting.
        report: the reading compared by its suite.

    Returns:
        ``admitted``; ``accuracy`` of the four rows, means over the seeds; ``gap`` (bound minus reference), ``premise``
        (semi-supervised minus supervised) and ``rise`` of reference and bound over the last quarter of the rounds;
        standard errors of the first two; ``seeds``, ``rounds``, ``code`` and ``hardware``.
    """
    folders = {label: [run.folder for run in runs] for label, runs in one.runs.items()}
    records: dict[str, list[Record]] = {label: [read_record(path) for path in own] for label, own in folders.items()}
    scores = {label: [record[READING[report]]["acc"] for record in own] for label, own in records.items()}
    gap, gap_error = _difference(scores[one.bound], scores[one.reference])
    premise, premise_error = _difference(scores[one.semi_supervised], scores[one.supervised])
    rises = {
        label: fmean(late_rise(rounds_of(path)) for path in folders[label]) for label in (one.reference, one.bound)
    }
    configs = [run.config for run in one.runs[one.reference]]
    every = [record for own in records.values() for record in own]
    return {
        "admitted": gap >= GAP and premise >= PREMISE and all(rise < RISE for rise in rises.values()),
        "accuracy": {label: round(fmean(values), 2) for label, values in scores.items()},
        "gap": round(gap, 2),
        "gap_standard_error": gap_error,
        "premise": round(premise, 2),
        "premise_standard_error": premise_error,
        "rise": {label: None if isnan(rise) else round(rise, 2) for label, rise in rises.items()},
        "seeds": [config.seed for config in configs],
        "rounds": configs[0].rounds,
        "code": sorted({version for record in every for version in code_versions(record)}),
        "hardware": sorted({hardware(record["environment"]) for record in every}),
    }


def _difference(upper: Sequence[float], lower: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error of a difference paired by seed; the latter is ``None`` with one seed."""
    differences = [a - b for a, b in zip(upper, lower, strict=True)]
    error = round(stdev(differences) / sqrt(len(differences)), 2) if len(differences) > 1 else None
    return fmean(differences), error
