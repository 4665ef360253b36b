"""Admission of a leaderboard's settings: a setting is ranked only if its bounds and its premise hold (RULES.md).

It runs only reference, bound and central rows, on separate seeds and untuned. Methods are not considered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def candidates(suite: Suite, scale: str, runtime: Runtime) -> dict[str, dict[str, list[Run]]]:
    """The settings of a scale, ``table/dataset``: its tables with a reference, on each of their data sets.

    The scale's entry ``admission`` gives the ``seeds`` and, under ``central``, two ``labels`` (supervised and
    semi-supervised) and the layers of options that put all data in one place. The first of a table's bounds is the one
    that uses all labels.

    Returns:
        By setting and label, the runs needed for admission, one per seed: of the reference, the bound, and the
        supervised and the semi-supervised central row, in this order.

    Raises:
        ConfigError: the scale has no such entry, a table with a reference has no bound, or its reference or bound is a
            central row.
    """
    spec = suite.scale(scale).admission
    if spec is None:
        raise ConfigError(f"{suite.where}: scale {scale} has no entry `admission`, so there is nothing to admit")
    runtime = replace(runtime, results_dir=str(Path(runtime.results_dir) / FOLDER))
    runs: dict[str, dict[str, list[Run]]] = {}
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
            rows = {row.method: row for row in table.rows if row.dataset == dataset}
            rows |= {label: Row(table.number, dataset, label, {}, {}) for label in spec.central.labels}
            runs[name] = {}
            for label in (reference, bound, *spec.central.labels):
                last = spec.central if label in spec.central.labels else None
                values = suite.values(rows[label], scale, tuned=False, last=last)
                run = Run.of(from_dict(values), f"admit {name}/{label}")
                runs[name][label] = [run.replace(seed=seed, runtime=runtime) for seed in spec.seeds]
    return runs


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
    needed = candidates(suite, scale, runtime)
    by_id = {run.id: run for of_setting in needed.values() for runs in of_setting.values() for run in runs}
    if missing := [run for run in by_id.values() if not is_done(run)]:
        pool.run_all(missing, jobs)
    if without := [run for run in missing if state(run.folder) != "complete"]:
        names = ", ".join(f"{run.name}, seed {run.config.seed} ({run.folder})" for run in without[:3])
        raise RunError(f"{len(without)} runs without a result: {names}. Fix what failed and run admit again")
    verdicts = {name: judged(runs, suite.reading(scale)) for name, runs in needed.items()}
    suite.admitted.add(scale, verdicts)
    return verdicts


def judged(runs: Mapping[str, Sequence[Run]], report: str) -> dict[str, Any]:
    """Compute the figures of a setting with complete runs, in points, and whether it is admitted.

    Args:
        runs: by label, as ``candidates`` gives them.
        report: the reading compared by its suite.

    Returns:
        ``admitted``; ``accuracy`` of the four rows, means over the seeds; ``gap`` (bound minus reference), ``premise``
        (semi-supervised minus supervised) and ``rise`` of reference and bound over the last quarter of the rounds;
        standard errors of the first two; ``seeds``, ``rounds``, ``code`` and ``hardware``.
    """
    reference, bound, supervised, semi_supervised = runs
    records: dict[str, list[Record]] = {label: [read_record(run.folder) for run in runs[label]] for label in runs}
    scores = {label: [record[READING[report]]["acc"] for record in records[label]] for label in records}
    gap, gap_error = _difference(scores[bound], scores[reference])
    premise, premise_error = _difference(scores[semi_supervised], scores[supervised])
    rises = {label: fmean(late_rise(rounds_of(run.folder)) for run in runs[label]) for label in (reference, bound)}
    every = [record for of_row in records.values() for record in of_row]
    return {
        "admitted": gap >= GAP and premise >= PREMISE and all(rise < RISE for rise in rises.values()),
        "accuracy": {label: round(fmean(values), 2) for label, values in scores.items()},
        "gap": round(gap, 2),
        "gap_standard_error": gap_error,
        "premise": round(premise, 2),
        "premise_standard_error": premise_error,
        "rise": {label: None if isnan(rise) else round(rise, 2) for label, rise in rises.items()},
        "seeds": [run.config.seed for run in runs[reference]],
        "rounds": runs[reference][0].config.rounds,
        "code": sorted({version for record in every for version in code_versions(record)}),
        "hardware": sorted({hardware(record["environment"]) for record in every}),
    }


def _difference(upper: Sequence[float], lower: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error of a difference paired by seed; the latter is ``None`` with one seed."""
    differences = [a - b for a, b in zip(upper, lower, strict=True)]
    error = round(stdev(differences) / sqrt(len(differences)), 2) if len(differences) > 1 else None
    return fmean(differences), error
