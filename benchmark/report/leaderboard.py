"""The leaderboard of a ranked suite: per setting how far rows are apart, how fine it resolves, and what rows cost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from benchmark.config import RunConfig
from benchmark.files import write_changed
from benchmark.report.differences import Panel, draw_differences
from benchmark.report.layout import NONE_RUN, csv_text, latex_bold, latex_table, pipe_table
from benchmark.report.plots import svg_text
from benchmark.report.statistics import FAILED, SPENT, compare, cost, interval, late_rise, superiority
from benchmark.report.tables import last_rounds, network, replace_block
from benchmark.runs.environment import hardware
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import READING, Record, code_versions
from benchmark.runs.records import Row as Evaluated
from benchmark.runs.states import RunState
from benchmark.suites.plan import Plan, Row, Table
from benchmark.suites.suite import Suite

ENOUGH = 3  # seeds that a row needs (RULES.md)
METRIC = "acc"
RISING = 1.0  # points over the last quarter of the rounds; a row that rises by more has not converged


@dataclass(frozen=True)
class Setting:
    """A table of a ranked suite on one of its data sets.

    Args:
        table: the table.
        dataset: label of the data set.
        rows: its lines on this data set that are run at all.
        scores: accuracy in percent as the suite reads it, one line per seed, one column per method label; a missing run
            is NaN, a failed one ``FAILED``.
        reference: the label that the others are compared with.
        bounds: labels that know more than a method may; they are neither tested nor ranked.
        lines: by method label: what ``compare`` gives, ``last_k_mean`` with ``last_k_ci95`` (the reading that averages
            the last rounds), ``rank`` (mean over the seeds that all methods have; it describes, and nothing is tested
            by it), ``rise`` (mean over the seeds of ``late_rise``), ``converged`` (not if ``rise`` is above 1 point),
            the ``resolution`` of the setting, the costs to reach the reference's mean accuracy, the tuned options, and
            which seed was ``verified``.
        averaged: the rounds of ``last_k_mean``, such as ``10 rounds``.
        admission: what the test of admission has found (``benchmark.admission.judged``); empty if it was not made.
    """

    table: Table
    dataset: str
    rows: Sequence[Row]
    scores: pd.DataFrame
    reference: str
    bounds: tuple[str, ...]
    lines: pd.DataFrame
    averaged: str
    admission: Mapping[str, Any] = field(default_factory=dict)

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

    @property
    def resolution(self) -> float:
        """Median half-width of the simultaneous intervals, in points: what the setting resolves; NaN if it has none."""
        return float(self.lines["resolution"].iloc[0])


def settings(suite: Suite, plan: Plan) -> list[Setting]:
    """All settings of a suite's tables with a reference of which some row was run, in the order of the tables.

    Those whose reference has no run at this scale are not among them (``not_compared``).
    """
    found = []
    for table in filter(lambda table: table.reference, suite.tables):
        for dataset in dict.fromkeys(row.dataset for row in table.rows):
            if dataset in not_compared(plan, table):
                continue
            rows = [row for row in table.rows if row.dataset == dataset and row.full_name in plan.of_row]
            scores = pd.DataFrame({row.method: _scores(plan, row, suite.report) for row in rows}, index=plan.seeds)
            if scores.notna().any(axis=None):
                found.append(_setting(suite, plan, table, dataset, rows, scores))
    return found


def not_compared(plan: Plan, table: Table) -> list[str]:
    """Data sets of a table whose reference has no run there at this scale, left out or pending, though others have."""
    planned = [row for row in table.rows if row.full_name in plan.of_row]
    known = {row.dataset for row in planned if row.method == table.reference}
    return [name for name in dict.fromkeys(row.dataset for row in planned) if table.reference and name not in known]


def frame(found: Sequence[Setting]) -> pd.DataFrame:
    """All settings' lines, one under the other: ``setting``, ``dataset``, ``method`` and the columns of ``lines``."""
    parts = [
        one.lines.rename_axis("method").reset_index().assign(setting=one.table.number, dataset=one.dataset)
        for one in found
    ]
    whole = pd.concat(parts, ignore_index=True)
    first = ["setting", "dataset", "method"]
    return whole[[*first, *(name for name in whole if name not in first)]]


def pairs(found: Sequence[Setting]) -> pd.DataFrame:
    """For every pair of methods of a setting the share of seeds in which the first is above the second."""
    parts = []
    for one in found:
        shares = (
            superiority(one.scores).rename_axis(index="a", columns="b").stack().dropna().rename("probability_a_above_b")
        )
        parts.append(shares.reset_index().assign(setting=one.table.number, dataset=one.dataset))
    return pd.concat(parts, ignore_index=True)[["setting", "dataset", "a", "b", "probability_a_above_b"]]


def panels(suite: Suite, found: Sequence[Setting]) -> list[Panel]:
    """What ``draw_differences`` draws: a panel per table of the suite that has a setting among ``found``."""
    made = []
    for table in suite.tables:
        own = [one for one in found if one.table is table]
        if own:
            lines = pd.concat([_drawn(one) for one in own]).rename_axis("method").reset_index()
            made.append(Panel(table.title, own[0].reference, lines))
    return made


def _drawn(one: Setting) -> pd.DataFrame:
    """Lines with what decides, the simultaneous interval; a row that is not tested keeps that of its difference."""
    half = one.lines["simultaneous_ci95"].fillna(one.lines["difference_ci95"])
    clear = [told_apart(one, method) for method in one.lines.index]
    return one.lines.assign(dataset=one.dataset, half_width=half, clear=clear)


def told_apart(one: Setting, method: str) -> bool:
    """Whether a row may be called better or worse than its reference (see ``READ``).

    The setting is admitted, the row's simultaneous interval leaves out zero, it has seeds enough, no run has failed,
    and the lower of the two has converged. Never for bounds, which are not tested.
    """
    line, failed = one.lines.loc[method], one.lines.loc[[method, one.reference], "failed"]
    apart = abs(line["difference"]) > line["simultaneous_ci95"]
    lower = method if line["difference"] < 0 else one.reference
    sound = line["pairs"] >= ENOUGH and not failed.any() and one.lines.loc[lower, "converged"]
    return bool(one.ranked and apart and sound)


def resolved(one: Setting) -> str:
    """Whether a setting is ranked, and what differences it can tell from none, in a sentence or two."""
    if not one.ranked:
        return UNRANKED.format(reason=_refused(one.admission) if one.admission else "it was not tested")
    if pd.isna(one.resolution):
        return "Too few runs to say which differences are resolved."
    return (
        f"Resolution: {one.resolution:.2f} points, the median half-width of the simultaneous intervals. "
        "Smaller differences are not resolved, which does not mean that rows are equal."
    )


def plain(text: str) -> str:
    """A sentence without the marks of Markdown, for a terminal or a page that links elsewhere."""
    return re.sub(r"\*\*| \(\[rules\]\([^)]*\)\)", "", text)


def standing(one: Setting, method: str) -> str:
    """Where a row stands in its setting, in a few sentences."""
    line, rows = one.lines.loc[method], [name for name in one.order if name not in one.bounds]
    if not line["n"]:
        return f"{one.table.title}, {one.dataset}: {method} has no result ({_seeds(line) or 'not run'})."
    place = f"{rows.index(method) + 1} of {len(rows)}"
    place += ", behind all rows without a failed run" if line["failed"] else " by the mean"
    half = _half(line["simultaneous_ci95"]) or _half(line["difference_ci95"])
    above = "better" if line["difference"] > 0 else "worse"
    verdict = above if told_apart(one, method) else "not resolved"
    return (
        f"{one.table.title}, {one.dataset}: {method} is at {line['mean']:.2f}{_half(line['ci95'])} percent "
        f"({_seeds(line)} seeds), {place}. {_number(line['difference'], '+.2f')}{half} "
        f"to {one.reference}: {verdict}{'' if line['converged'] else RISES}. {plain(resolved(one))}"
    )


def comparison(one: Setting) -> str:
    """The rows of a setting in brief, as a table of Markdown."""
    return _comparison([one], brief=True)


def _refused(admission: Mapping[str, Any]) -> str:
    """Why a setting was not admitted: the figures that decided."""
    rises = ", ".join(f"{label} rises by {rise:g}" for label, rise in admission["rise"].items() if rise is not None)
    return (
        f"all labels are worth {admission['gap']:g} points above the reference, unlabelled data "
        f"{admission['premise']:g} points where one place has everything, and late in the run {rises or 'no one rises'}"
    )


def interim(suite: Suite, plan: Plan, found: Sequence[Setting]) -> list[str]:
    """A sentence where rows do not have all seeds that the suite fixes; none where they have."""
    fixed = len(suite.scale(plan.scale)["seeds"])
    counts = [int(n) for one in found for n in one.lines["n"] + one.lines["failed"]]
    if not counts or min(counts) >= fixed:
        return []
    have = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{min(counts)}"
    return [f"**Interim**: rows have {have} of the {fixed} seeds that were fixed beforehand. What is bold may change."]


def markdown(suite: Suite, plan: Plan, found: Sequence[Setting]) -> str:
    """The page: for every table the comparison on each of its data sets with its resolution, and the costs."""
    beside = "" if suite.report == "last_k_mean" else BESIDE
    read = READ.format(accuracy=ACCURACY[suite.report], beside=beside)
    parts = [f"# {suite.title}", _provenance(suite, plan, plan.found), *interim(suite, plan, found), read]
    for table in suite.tables:
        own = [one for one in found if one.table is table]
        absent = not_compared(plan, table)
        if own or absent:
            parts += [f"## {table.title}", *(text for one in own for text in (_comparison([one]), resolved(one)))]
        if absent:
            parts += [f"Not compared: {', '.join(absent)}; {table.reference}, the reference, is not run at this scale."]
        if any((one.lines["verified"] != "").any() for one in own):
            parts += [VERIFIED]
        if own:
            parts += ["What it costs", _costs(own, GOAL[suite.report])]
    return "\n\n".join(parts) + "\n"


def latex(suite: Suite, plan: Plan, found: Sequence[Setting], metrics: Sequence[str] = ()) -> str:
    """A ``booktabs`` table per setting; rows are named and ordered as on the page, and Δ is bold where it is there.

    Args:
        suite: the leaderboard's.
        plan: its runs.
        found: its settings.
        metrics: columns, in their order (``METRICS``); default: those of the suite's table. What is compared stands
            behind ``acc``.
    """
    parts = [r"% Made from records; needs \usepackage{booktabs}."]
    told = " ".join(text.replace("**", "") for text in interim(suite, plan, found))
    for one in found:
        shown, rows = metrics or one.table.metrics, {row.method: row for row in one.rows}
        body = [{"method": m, **_latex_cells(suite, plan, one, rows[m], shown)} for m in one.order]
        frame = pd.DataFrame(body)
        what = "Accuracy" if list(shown) == [METRIC] else "Metrics"
        read = f"{what}{OF[suite.report]} in percent, mean ± half-width of the 95 % t interval (seeds)."
        compared = LATEX_READ if METRIC in shown else ""
        caption = " ".join(filter(None, (f"{one.table.title}, {one.dataset}.", read, compared, told)))
        name = f"{suite.paper}-{plan.scale}-{one.table.number}-{one.dataset}".replace(" ", "-")
        parts.append(latex_table(frame, caption, name, "l" + "r" * (frame.shape[1] - 1)))
    return "\n".join(parts)


def _latex_cells(suite: Suite, plan: Plan, one: Setting, row: Row, metrics: Sequence[str]) -> dict[str, str]:
    """What stands in the row of a method, by the title of the column; ``–`` where no record has the metric."""
    cells: dict[str, str] = {}
    for metric in metrics:
        if metric == METRIC:
            known = _cells(one, row.method, brief=False)
            delta = known[f"Δ to {one.reference}"]
            clear = latex_bold(delta.strip("*")) if delta.startswith("**") else delta
            cells |= {PRINTED[metric]: known[one.dataset], f"Δ to {one.reference}": clear}
            cells |= {title: known[title] for title in ("simultaneous", "p (Holm)")}
        else:
            values = _scores(plan, row, suite.report, metric)
            values = values[values != FAILED].dropna()
            text = f"{values.mean():.2f}{_half(interval(values))} ({len(values)})"
            cells[PRINTED[metric]] = text if len(values) else NONE_RUN
    return cells


def write(suite: Suite, plan: Plan, results: Path, name: str, readme: Path | None) -> list[Path]:
    """Write ``tables/<name>-leaderboard.md`` and ``.csv``, ``<name>-pairs.csv``, a picture, and the readme's block.

    The picture, ``tables/<name>-leaderboard.svg``, and the block ``leaderboard:<name>`` (see ``replace_block``), which
    has the comparisons in brief, show the settings in which every row has ``ENOUGH`` seeds. Returns the files that
    changed; nothing is written as long as nothing was run.
    """
    found = settings(suite, plan)
    if not found:
        return []
    page, whole, shares, picture = files(results, name)
    texts = {page: markdown(suite, plan, found), whole: csv_text(frame(found)), shares: csv_text(pairs(found))}
    told = [one for one in found if (one.lines["n"] + one.lines["failed"] >= ENOUGH).all()]
    if told:
        texts[picture] = svg_text(draw_differences(panels(suite, told)))
    if readme is not None and readme.exists():
        parts = [part for table in suite.tables if (part := _section(told, table))]
        shown = {
            key: plan.found[key] for one in told for row in one.rows for key in plan.of_row[row.full_name].values()
        }
        about = [*interim(suite, plan, told), _provenance(suite, plan, shown, brief=True)]
        block = "\n\n".join([*parts, *about] if parts else [])
        texts[readme] = replace_block(readme.read_text(encoding="utf-8"), f"leaderboard:{name}", block)
    return write_changed(texts)


def files(results: Path, name: str) -> list[Path]:
    """Where ``write`` puts page, lines, pairs and picture of ``<paper>-<scale>``."""
    endings = ("leaderboard.md", "leaderboard.csv", "pairs.csv", "leaderboard.svg")
    return [results / "tables" / f"{name}-{ending}" for ending in endings]


def read(results: Path, name: str) -> pd.DataFrame | None:
    """The lines that ``write`` has written, one per row of every setting; ``None`` before anything was run."""
    _, lines, *_ = files(results, name)
    return pd.read_csv(lines) if lines.exists() else None


LATEX_READ = (
    "Δ: difference in accuracy, paired by seed; bold where its simultaneous interval (Bonferroni), whose half-width "
    "stands beside it, leaves out zero."
)
PRINTED = {
    "acc": "accuracy",
    "acc_clients": "at clients",
    "acc_worst_clients": "at the worst clients",
    "auc": "AUC",
    "precision": "precision",
    "recall": "recall",
    "loss": "loss",
}
OF = {
    "best": " of the best round",
    "last": " of the last round",
    "last_k_mean": ", mean of the last rounds,",
    "averaged": " of the averaged model of the last rounds",
}
ACCURACY = {reading: f"Accuracy{of}" for reading, of in OF.items()}
GOAL = {
    "best": "mean best accuracy",
    "last": "mean final accuracy",
    "last_k_mean": "mean accuracy of the last rounds",
    "averaged": "mean accuracy of the last rounds",  # no round has the averaged model
}
UNRANKED = (
    "**Not ranked**: the setting has not passed the test of admission ([rules](../../RULES.md)): {reason}. Its numbers "
    "are shown, and no row is called better or worse."
)
VERIFIED = (
    "Verified: a maintainer has run this seed again, with the same numbers in every round (equal), or on another "
    "machine with readings within the prediction intervals of the row's seeds, which together have 95 % (within)."
)
RISES = ", not converged"
BESIDE = "The mean of the last rounds stands beside it because single rounds swing; nothing is compared by it. "
READ = (
    "{accuracy} in percent, mean ± half-width of the 95 % t interval (seeds). Δ: difference to the reference row, "
    "paired by seed, with its own interval. Simultaneous: half-width of the intervals of all rows of the setting "
    "that hold together with 95 % (Bonferroni). Δ is **bold** where its simultaneous interval leaves out zero, from "
    "three seeds on and where no run has failed. p: of the paired t-test after Holm's correction over the rows of "
    "the setting, which can be below 0.05 where nothing is bold; sign flips: exact p-value of the paired sign-flip "
    "test, not corrected, which cannot be below 2 / 2ⁿ with n seeds. Bounds know more labels than methods may; they "
    "are in none of these tests. Not converged: a row that rises by more than one point over the last quarter of "
    "its rounds (its median slope there, averaged over the seeds). It may need more rounds and is not called worse, "
    "nor is a row called better than a reference that still rises. A failed run has no accuracy and ranks last in its "
    "seed; a row with one stands behind all rows without, and its mean and Δ are those of its other seeds. "
    "{beside}Above: seeds in which the row is above the reference. Rank: mean over the seeds of this data set, "
    "bounds left out; it describes, and nothing is tested by it. The learning rates are those of the papers or were "
    "tuned, by one rule for every row, on held-out training images; `tuned` says which rate was chosen."
)


def _section(found: Sequence[Setting], table: Table) -> str:
    own = [one for one in found if one.table is table]
    if not own:
        return ""
    told = "\n\n".join(f"{one.dataset}: {resolved(one)}" for one in own)
    return f"**{table.title}**\n\n{_comparison(own, brief=True)}\n\n{told}"


def _scores(plan: Plan, row: Row, report: str, metric: str = METRIC) -> pd.Series:
    scores = {}
    for seed, key in plan.of_row[row.full_name].items():
        record = plan.found[key].record
        if record is not None:
            scores[seed] = record[READING[report]].get(metric, nan)
        elif plan.found[key].state == "failed":
            scores[seed] = FAILED
    return pd.Series(scores, dtype="float64")


def _setting(
    suite: Suite,
    plan: Plan,
    table: Table,
    dataset: str,
    rows: Sequence[Row],
    scores: pd.DataFrame,
) -> Setting:
    reference, bounds = table.reference, tuple(b for b in table.bounds if b in scores)
    lines = compare(scores, reference, bounds)
    whole = scores.drop(columns=list(bounds)).dropna()
    lines["rank"] = whole.rank(axis=1, ascending=False).mean()
    goal, more = lines.loc[reference, "mean"], {}
    if suite.report == "averaged":
        goal = next(_smooth(plan, row)["last_k_mean"] for row in rows if row.method == reference)
    for row in rows:
        done = _done(plan, row)
        more[row.method] = {
            "bound": row.method in bounds,
            "goal": goal,
            **_smooth(plan, row),
            "rise": _rise(done),
            **_spent(done, goal),
            "tuned": _tuned(suite, plan, row),
            "verified": _verified(suite, plan, row),
        }
    lines = lines.join(pd.DataFrame.from_dict(more, orient="index"))
    lines["converged"] = ~(lines["rise"] > RISING)
    lines["resolution"] = lines["simultaneous_ci95"].median()
    averaged = " or ".join(sorted({last_rounds(config) for row in rows for config in _configs(plan, row)}))
    admission = suite.admitted.entries(plan.scale).get(f"{table.number}/{dataset}", {})
    if not admission.get("admitted", False):
        lines["rank"] = nan
    return Setting(table, dataset, rows, scores, reference, bounds, lines, averaged, admission)


def _configs(plan: Plan, row: Row) -> list[RunConfig]:
    return [plan.runs[key].config for key in plan.of_row[row.full_name].values()]


def _smooth(plan: Plan, row: Row) -> dict[str, float | None]:
    """Mean over the seeds, with its interval, of the mean of the last rounds."""
    values = _scores(plan, row, "last_k_mean")
    values = values[values != FAILED]
    return {"last_k_mean": values.mean(), "last_k_ci95": interval(values)}


def _done(plan: Plan, row: Row) -> list[tuple[Record, list[Evaluated]]]:
    """Record and evaluated rounds of a row's complete runs."""
    found = []
    for key in plan.of_row[row.full_name].values():
        record = plan.found[key].record
        if record is not None:
            found.append((record, RunFolder(plan.runs[key].folder).rows()))
    return found


def _rise(done: Sequence[tuple[Record, Sequence[Evaluated]]]) -> float:
    """Mean over the seeds of what the accuracy rises over the last quarter of the rounds; NaN where no run tells."""
    rises = [late_rise([line["round"] for line in curve], [line[METRIC] for line in curve]) for _, curve in done]
    told = [rise for rise in rises if not isnan(rise)]
    return fmean(told) if told else nan


def _spent(done: Sequence[tuple[Record, Sequence[Evaluated]]], goal: float) -> dict[str, Any]:
    """How many of a row's runs reach an accuracy, what these spend until then on average, and what clients keep."""
    costs, kept = [], []
    for record, curve in done:
        if "client_state_bytes" in record:
            kept.append(record["client_state_bytes"])
        found = cost(record, curve, goal)
        if found is not None:
            costs.append(found)
    spent = pd.DataFrame(costs, columns=["rounds", *SPENT, "seconds"])
    typical = {**spent.mean(), "seconds": spent["seconds"].median()}  # a machine that was busy once counts once
    return {"reached": len(costs), **typical, "client_state_bytes": max(kept, default=nan)}


def _tuned(suite: Suite, plan: Plan, row: Row) -> str:
    """The options that tuning has chosen for a row, such as ``lr 0.03``."""
    chosen = suite.tuned.entries(plan.scale).get(row.full_name, {}).get("options", {})
    return ", ".join(f"{name.partition('.')[2]} {value:g}" for name, value in chosen.items())


def _verified(suite: Suite, plan: Plan, row: Row) -> str:
    """Which seed of a row was run again by a maintainer, such as ``seed 3, equal``; empty where none was."""
    found = suite.verified.entries(plan.scale).get(row.full_name)
    return f"seed {found['seed']}, {'equal' if found['equal'] else 'within'}" if found else ""


def _comparison(own: Sequence[Setting], brief: bool = False) -> str:
    """Methods as rows, and for each data set how far they are apart; ``brief`` has what a first look needs."""
    methods = list(dict.fromkeys(method for one in own for method in one.order))
    head = ["method", *(title for one in own for title in _cells(one, one.reference, brief))]
    body = [[method, *(cell for one in own for cell in _cells(one, method, brief).values())] for method in methods]
    return pipe_table(head, body)


def _cells(one: Setting, method: str, brief: bool) -> dict[str, str]:
    """What stands in the row of a method about one data set, by the title of the column."""
    line = one.lines.loc[method]
    delta, half = _number(line["difference"], "+.2f"), _number(line["difference_ci95"])
    told = f"{delta} ± {half}" if half else delta
    cells = {
        one.dataset: f"{line['mean']:.2f}{_half(line['ci95'])} ({_seeds(line)})" + ("" if line["converged"] else RISES),
        f"mean of the last {one.averaged}": f"{line['last_k_mean']:.2f}{_half(line['last_k_ci95'])}",
        f"Δ to {one.reference}": f"**{told}**" if told_apart(one, method) else told,
        "simultaneous": _half(line["simultaneous_ci95"]).strip(),
        "p (Holm)": _p(line["p_holm"]),
        "p (sign flips)": _p(line["p_flip"]),
        "above": _number(100 * line["above"], ".0f %"),
        "rise": _number(line["rise"], "+.1f"),
        "rank": "bound" if line["bound"] else _number(line["rank"], ".1f"),
        "tuned": line["tuned"],
        **({"verified": line["verified"]} if (one.lines["verified"] != "").any() else {}),
    }
    if brief:
        cells = {title: cells[title] for title in (one.dataset, f"Δ to {one.reference}", "simultaneous", "rank")}
    if not line["n"]:
        nothing = {one.dataset: _seeds(line) or "not run", "rank": cells["rank"] if line["failed"] else ""}
        return {title: nothing.get(title, "") for title in cells}
    return cells


def _seeds(line: pd.Series) -> str:
    """Seeds with a score and those that have failed: ``5``, ``4, 1 failed`` or ``5 failed``."""
    scored = f"{line['n']:.0f}" if line["n"] else ""
    failed = f"{line['failed']:.0f} failed" if line["failed"] else ""
    return ", ".join(filter(None, (scored, failed)))


def _costs(own: Sequence[Setting], goal_name: str) -> str:
    """What every row spends until it has its reference's accuracy, which ``goal_name`` says in words."""
    head = [
        "data set",
        "method",
        "seeds that reach it",
        "rounds",
        "MB up",
        "MB down",
        "steps",
        "seconds",
        "client state at most, MB",
    ]
    body = []
    for one in own:
        goal = f"{one.dataset}, {_number(one.lines['goal'].iloc[0], '.1f %') or f'no run of {one.reference}'}"
        for method, line in one.lines.iterrows():
            if line["n"]:
                body.append(
                    [
                        goal,
                        str(method),
                        f"{line['reached']:.0f} of {line['n']:.0f}",
                        _number(line["rounds"], ".0f"),
                        _number(line["bytes_up"] / 1e6, ".1f"),
                        _number(line["bytes_down"] / 1e6, ".1f"),
                        _number(line["steps"], ".0f"),
                        _number(line["seconds"], ".0f"),
                        _number(line["client_state_bytes"] / 1e6, ".1f"),
                    ]
                )
                goal = ""
    told = (
        f"Until an evaluated round first has the reference's {goal_name}; means over the seeds that reach it, "
        "of the seconds medians. Seconds of several machines, or of busy ones, tell little. Client state: what all "
        "clients together keep between their visits if each of them takes part."
    )
    return f"{told}\n\n{pipe_table(head, body)}"


def _provenance(suite: Suite, plan: Plan, runs: Mapping[str, RunState], brief: bool = False) -> str:
    """Where the numbers of some runs come from; in brief, several versions of the code are counted and not named."""
    records = [run.record for run in runs.values() if run.record is not None]
    configs = [plan.runs[key].config for key, run in runs.items() if run.record is not None]
    hours = sum(record["timing"]["seconds"] for record in records) / 3600
    versions = sorted({version for record in records for version in code_versions(record)})
    parts = {
        "scale": f"{plan.scale} ({suite.scale(plan.scale).get('note', 'own protocol')})",
        "network": ", ".join(sorted({network(config) for config in configs})),
        "rounds": ", ".join(map(str, sorted({config.rounds for config in configs}))),
        "runs": f"{len(records)} of {len(runs)} complete, {hours:.1f} hours",
        "hardware": ", ".join(sorted({hardware(record["environment"]) for record in records})),
        "code": f"{len(versions)} versions" if brief and len(versions) > 1 else ", ".join(versions),
    }
    return "; ".join(f"{name}: {text}" for name, text in parts.items()) + "."


def _p(value: Any) -> str:
    return "< 0.001" if value < 0.001 else _number(value, ".3f")


def _half(value: Any) -> str:
    return f" ± {_number(value)}" if _number(value) else ""


def _number(value: Any, form: str = ".2f") -> str:
    if value is None or pd.isna(value):
        return ""
    suffix = " %" if form.endswith(" %") else ""
    return format(value, form.removesuffix(" %")) + suffix
