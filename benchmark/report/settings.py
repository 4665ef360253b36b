"""The settings of a ranked suite: how far rows are apart there, how finely it resolves, and what rows cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import pandas as pd
from scipy import stats

from benchmark.report.facts import last_rounds
from benchmark.report.frame import rounds_of, values_of
from benchmark.report.statistics import FAILED, LEAST, LEVEL, SPENT, compare, cost, interval, late_rise, paired, summary
from benchmark.runs.records import Record
from benchmark.suites.plan import Plan, Row, Table
from benchmark.suites.suite import Suite

METRIC, WORST = "acc", "acc_worst_clients"
POWER = 0.8
RISING = 1.0  # points over the last quarter of the rounds; a row that rises by more has not converged


@dataclass(frozen=True)
class Setting:
    """A table of a ranked suite on one of its data sets.

    Args:
        table: the table.
        dataset: label of the data set.
        scores: accuracy in percent as the suite reads it, one line per seed, one column per method label; a missing run
            is NaN, a failed one ``FAILED``.
        lines: by method label: what ``compare`` gives, ``last_k_mean`` with ``last_k_ci95`` (the reading that averages
            the last rounds), ``rank`` (mean over the seeds that all methods have, if admitted; nothing is tested
            by it), ``rise`` (mean over the seeds of ``late_rise``), ``converged`` (not if ``rise`` is above 1 point),
            the ``resolution`` of the setting (median half-width of the simultaneous intervals, in points; NaN if it
            has none), the difference ``found80`` that a test would find with a power of 80 %, the costs to reach the
            reference's mean accuracy, and the tuned options. With controls ``over_control`` (paired difference) and
            ``over_control_ci95``; with a table of the same rows at their papers' rates ``untuned``, ``untuned_ci95``,
            ``untuned_n`` and ``untuned_failed`` (runs); and ``worst_clients``, ``worst_clients_difference`` and
            ``worst_clients_ci95`` where the table has that metric.
        averaged: the rounds of ``last_k_mean``, such as ``10 rounds``.
        admission: what the test of admission has found (``benchmark.board.admit.judged``); empty if it was not made.
    """

    table: Table
    dataset: str
    scores: pd.DataFrame
    lines: pd.DataFrame
    averaged: str
    admission: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """The label that the others are compared with."""
        return self.table.reference

    @property
    def ranked(self) -> bool:
        """Whether the setting is admitted; one that is not is shown, and no row is called better or worse there."""
        return bool(self.admission.get("admitted", False))

    @property
    def order(self) -> tuple[str, ...]:
        """Labels from the greatest mean to the least, and behind all others those with failed runs, the fewest first.

        Their means are those of the runs that did not fail, and place them among each other alone.
        """
        return tuple(self.lines.sort_values(["failed", "mean"], ascending=[True, False]).index)


def settings(suite: Suite, plan: Plan) -> list[Setting]:
    """All settings of a suite's tables with a reference of which some row was run, in the order of the tables.

    Those whose reference is not run at this scale are not among them.
    """
    board = []
    for table in filter(lambda table: table.reference, suite.tables):
        for dataset in dict.fromkeys(row.dataset for row in table.rows):
            rows = [row for row in table.rows if row.dataset == dataset and row.full_name in plan.of_row]
            scores = pd.DataFrame({row.method: _scores(plan, row, suite.reading(plan.scale)) for row in rows})
            if table.reference in scores and scores.notna().any(axis=None):
                board.append(_setting(suite, plan, table, rows, scores))
    return board


def told_apart(setting: Setting, method: str) -> bool:
    """Whether a row may be called better or worse than its reference (see ``leaderboard.READ``).

    The setting is admitted, the row's simultaneous interval leaves out zero, it has seeds enough, no run has failed,
    and the lower of the two has converged. Never for bounds and controls, which are not tested.
    """
    line, failed = setting.lines.loc[method], setting.lines.loc[[method, setting.reference], "failed"]
    apart = abs(line["difference"]) > line["simultaneous_ci95"]
    lower = method if line["difference"] < 0 else setting.reference
    sound = line["pairs"] >= LEAST and not failed.any() and setting.lines.loc[lower, "converged"]
    return bool(setting.ranked and apart and sound)


def _scores(plan: Plan, row: Row, reading: str) -> pd.Series:
    """By seed, with ``FAILED`` for a run that has failed and NaN for one that is missing."""
    scores = values_of(plan, row.full_name, reading, METRIC).reindex(plan.seeds)
    failed = [seed for seed, key in plan.of_row[row.full_name].items() if plan.found[key].state == "failed"]
    scores[failed] = FAILED
    return scores


def _setting(suite: Suite, plan: Plan, table: Table, rows: Sequence[Row], scores: pd.DataFrame) -> Setting:
    reference, dataset, reading = table.reference, rows[0].dataset, suite.reading(plan.scale)
    untested = table.untested & {*scores}
    lines = compare(scores, reference, untested)
    smooth = {row.method: values_of(plan, row.full_name, "last_k_mean", METRIC) for row in rows}
    worst = {row.method: values_of(plan, row.full_name, reading, WORST) for row in rows}
    untuned_tables = [other for other in suite.tables if other.untuned == table.number]
    untuned_rows = {row.method: row for other in untuned_tables for row in other.rows if row.dataset == dataset}
    goal = smooth[reference].mean() if reading == "averaged" else lines.loc[reference, "mean"]
    choices, unchosen = suite.choices(plan.scale), "not tuned" if suite.scale(plan.scale).tuning else ""
    columns: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, of_seed = row.method, plan.of_row[row.full_name]
        found = [(plan.found[key].record, plan.runs[key].folder) for key in of_seed.values()]
        done = [(record, rounds_of(folder)) for record, folder in found if record]
        line = {"bound": name in table.bounds, "goal": goal}
        line |= {"last_k_mean": smooth[name].mean(), "last_k_ci95": interval(smooth[name])}
        line["rise"] = pd.Series([late_rise(curve) for _, curve in done], dtype="float64").mean()
        line |= {**_spent(done, goal), "tuned": _tuned(choices.get(row.full_name)) or unchosen}
        control = table.controls.get(name, "")
        if control in scores:
            line["over_control"], line["over_control_ci95"], _ = paired(scores[name], scores[control])
        untuned = untuned_rows.get(name)
        if untuned and untuned.full_name in plan.of_row:
            at_paper = summary(_scores(plan, untuned, reading))
            line |= {"untuned": at_paper["mean"], "untuned_ci95": at_paper["ci95"]}
            line |= {"untuned_n": at_paper["n"], "untuned_failed": at_paper["failed"]}
        if WORST in table.metrics:
            line["worst_clients"] = worst[name].mean()
            difference, half, _ = paired(worst[name], worst[reference])
            line |= {"worst_clients_difference": difference, "worst_clients_ci95": half}
        columns[name] = line
    admission = {} if plan.rounds else _admission(suite, plan.scale, table, dataset)
    complete = scores.drop(columns=[*untested]).dropna()
    lines["rank"] = complete.rank(axis=1, ascending=False).mean() if admission.get("admitted", False) else nan
    lines = lines.join(pd.DataFrame.from_dict(columns, orient="index"))
    lines["converged"] = ~(lines["rise"] > RISING)
    lines["resolution"] = lines["simultaneous_ci95"].median()
    lines["found80"] = _detectable(lines, scores.shape[1] - len(untested) - 1)
    keys = [key for row in rows for key in plan.of_row[row.full_name].values()]
    averaged = " or ".join(sorted({last_rounds(plan.runs[key].config) for key in keys}))
    return Setting(table, dataset, scores, lines, averaged, admission)


def _detectable(lines: pd.DataFrame, family: int) -> pd.Series:
    """By row, the true difference that its simultaneous interval tells from zero with 80 % (t approximation)."""
    free = (lines["pairs"] - 1).clip(lower=1)
    critical = stats.t.ppf(1 - (1 - LEVEL) / 2 / max(1, family), free)
    return lines["simultaneous_ci95"] * (1 + stats.t.ppf(POWER, free) / critical)


def _admission(suite: Suite, scale: str, table: Table, dataset: str) -> Mapping[str, Any]:
    """What the test of admission has found for a setting; empty if it was not made.

    The verdict on a setting of the suite that this one extends counts if reference and first bound are alike in both,
    apart from seeds and tuned rates.
    """
    verdict: Mapping[str, Any] | None = suite.admitted.own(scale).get(f"{table.number}/{dataset}")
    extended = suite.extended
    if verdict is not None or extended is None or scale not in extended.spec.scales:
        return verdict or {}
    base = next((base for base in extended.tables if base.number == table.number), None)
    if base is None or _tested(suite, scale, table, dataset) != _tested(extended, scale, base, dataset):
        return {}
    return _admission(extended, scale, base, dataset)


def _tested(suite: Suite, scale: str, table: Table, dataset: str) -> list[tuple[str, Mapping[str, Any]]]:
    labels = (table.reference, *table.bounds[:1])
    rows = [row for row in table.rows if row.dataset == dataset and row.method in labels]
    return [(row.method, suite.before_tuning(row, scale)) for row in rows]


def _spent(done: Sequence[tuple[Record, pd.DataFrame]], goal: float) -> dict[str, Any]:
    """How many of a row's runs reach an accuracy, what these spend until then on average, and what clients keep."""
    costs = [cost(record, curve, goal) for record, curve in done]
    spent = pd.DataFrame([of_run for of_run in costs if of_run is not None], columns=["rounds", *SPENT, "seconds"])
    typical = {**spent.mean(), "seconds": spent["seconds"].median()}  # a machine that was busy once counts once
    kept = max((record["client_state_bytes"] for record, _ in done if "client_state_bytes" in record), default=nan)
    return {"reached": len(spent), **typical, "client_state_bytes": kept}


def _tuned(entry: Mapping[str, Any] | None) -> str:
    """The options of an entry of ``Suite.choices``, such as ``lr 0.03``; empty without an entry."""
    if entry is None:
        return ""
    options = [f"{name.partition('.')[2]} {value:g}" for name, value in entry["options"].items()]
    return ", ".join(options if entry["interior"] else [*options, "not interior"])
