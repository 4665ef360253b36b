"""The leaderboard of a ranked suite: its page, and its tables in LaTeX and as data."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.report.facts import network
from benchmark.report.formats import csv_text, half, latex_table, markdown, number, pipe_table
from benchmark.report.plots import draw_differences, svg_text
from benchmark.report.settings import Setting, settings, told_apart
from benchmark.report.statistics import LEAST, paired
from benchmark.runs.environment import hardware
from benchmark.runs.records import code_versions
from benchmark.suites.plan import Plan
from benchmark.suites.suite import Suite
from datamodules.common.files import write_changed

COSTS = {
    "rounds": ("rounds", 1, "{:.0f}"),
    "MB up": ("bytes_up", 1e6, "{:.1f}"),
    "MB down": ("bytes_down", 1e6, "{:.1f}"),
    "steps": ("steps", 1, "{:.0f}"),
    "seconds": ("seconds", 1, "{:.0f}"),
    "client state at most, MB": ("client_state_bytes", 1e6, "{:.1f}"),
}
"""Columns of the table of costs: the column of a setting's lines behind each, its unit and its format."""
LATEX_READ = (
    "Δ: difference in accuracy, paired by seed; bold only where its simultaneous interval (Bonferroni), whose "
    "half-width stands beside it, leaves out zero."
)
ACCURACY = {
    "best": ("Accuracy of the best round", "mean best accuracy"),
    "last": ("Accuracy of the last round", "mean final accuracy"),
    "last_k_mean": ("Accuracy, mean of the last rounds,", "mean accuracy of the last rounds"),
    "averaged": ("Accuracy of the averaged model of the last rounds", "mean accuracy of the last rounds"),
}
"""What is compared, and what rows have to reach; no round has the averaged model."""
UNRANKED = (
    "**Not ranked**: the setting has not passed the test of admission ([rules](../../RULES.md)): {reason}. Its numbers "
    "are shown, and no row is called better or worse."
)
REFUSED = (
    "all labels are worth {gap:g} points above the reference, unlabelled data {premise:g} points where one place has "
    "everything, and late in the run {rise}"
)
CONTROLS = (
    "Control: a row's own step with its unlabelled loss switched off, tuned alike. Δ to its control, paired by seed "
    "with its own interval, is what that loss adds, each row at the rate tuned for it. At its paper's rates: the same "
    "row without tuning, over the same seeds. At the worst clients: accuracy that the worst tenth of the clients can "
    "expect. None of these is tested."
)
BESIDE = (
    ("Δ to its control", "over_control", "{:+.2f}", "over_control_ci95"),
    ("at its paper's rates", "untuned", "{:.2f}", "untuned_ci95"),
    ("at the worst clients", "worst_clients", "{:.1f}", ""),
    ("Δ there", "worst_clients_difference", "{:+.1f}", "worst_clients_ci95"),
)
"""What is shown and neither tested nor ranked, where the suite has it: title, columns of the lines, and format."""
SMOOTH = "The mean of the last rounds stands beside it because single rounds swing; nothing is compared by it. "
READ = (
    "{accuracy} in percent, mean ± half-width of the 95 % t interval (seeds). Δ: difference to the reference row, "
    "paired by seed, with its own interval. Simultaneous: half-width of the intervals of all rows of the setting that "
    "jointly hold with 95 % confidence (Bonferroni). Δ is **bold** where its simultaneous interval leaves out zero, "
    "from three seeds on, where no run has failed and the lower of the two rows has converged. p: of the paired t-test "
    "after Holm's correction over the rows of the setting, which can be below 0.05 where nothing is bold; sign flips: "
    "exact p-value of the paired sign-flip test, not corrected, which cannot be below 2 / 2ⁿ with n seeds. Bounds know "
    "more labels than methods may; they are in none of these tests. Not converged: a row that rises by more than one "
    "point over the last quarter of its rounds (its median slope there, averaged over the seeds). It may need more "
    "rounds and is not called worse, nor is a row called better than a reference that still rises. A failed run has no "
    "accuracy and ranks last in its seed; a row with one stands behind all rows without, and its mean and Δ are those "
    "of its other seeds. {beside}Above: seeds in which the row is above the reference. Rank: mean over the seeds of "
    "this data set, bounds and controls left out; it describes, and nothing is tested by it. The learning rates are "
    "those of the papers or were tuned, by one rule for every row, on held-out training data; `tuned` says which rate "
    "was chosen."
)


def frame(board: Sequence[Setting]) -> pd.DataFrame:
    """All settings' lines, one under the other: ``setting``, ``dataset``, ``method`` and the columns of ``lines``."""
    lines = {(setting.table.number, setting.dataset): setting.lines for setting in board}
    return pd.concat(lines, names=["setting", "dataset", "method"]).reset_index()


def resolved(setting: Setting) -> str:
    """Whether a setting is ranked, and what differences it can tell from none, in a sentence or two."""
    if not setting.ranked:
        reason = "it was not tested"
        if setting.admission:
            rises = ", ".join(
                f"{markdown(label)} rises by {value:g}" if value is not None else f"{markdown(label)}'s rise is unknown"
                for label, value in setting.admission["rise"].items()
            )
            reason = REFUSED.format(gap=setting.admission["gap"], premise=setting.admission["premise"], rise=rises)
        return UNRANKED.format(reason=reason)
    resolution = setting.lines["resolution"].iloc[0]
    if pd.isna(resolution):
        return "Too few runs to say which differences are resolved."
    return (
        f"Resolution: {resolution:.2f} points, the median half-width of the simultaneous intervals. "
        "A row whose simultaneous interval contains zero is not resolved, which does not mean that it equals the "
        "reference."
    )


def power(setting: Setting) -> str:
    """Which differences a setting's rows would be told from their reference with, in 80 of 100 repetitions."""
    differences = setting.lines["found80"].dropna()
    if not setting.ranked or differences.empty:
        return ""
    return (
        f"Power: with the seeds and the scatter of these rows, a true difference of {differences.min():.1f} to "
        f"{differences.max():.1f} points, depending on the row, would be found with a power of about 80 %."
    )


def brief(setting: Setting, method: str) -> str:
    """A setting's rows by their place, with what can be told of them, and ``method`` beside its control and the best
    other row.
    """
    plain = re.sub(r"\*\*| \(\[rules\]\([^)]*\)\)", "", resolved(setting))
    parts = [f"{setting.table.title}, {setting.dataset}", pipe_table(*_lines(setting, short=True)), plain]
    others = [name for name in setting.order if name not in (method, *setting.table.untested)]
    best = next((name for name in others if setting.lines.loc[name, "n"]), setting.reference)
    for other, role in ((setting.table.controls.get(method), "its control"), (best, "the best other row")):
        if other in setting.scores:
            difference, width, pairs = paired(setting.scores[method], setting.scores[other])
            told = f"{difference:+.2f}{half(width)}, paired by seed, not corrected"
            parts += [f"{method} to {other}, {role}: {told}."] if pairs else []
    return "\n\n".join(parts)


def interim(suite: Suite, plan: Plan, board: Sequence[Setting]) -> list[str]:
    """A sentence where rows do not have all seeds that the suite fixes, and one where they have others; else none."""
    fixed = suite.scale(plan.scale).seeds
    counts = {int(n) for setting in board for n in setting.scores.loc[setting.scores.index.isin(fixed)].count()}
    seeds = {seed for setting in board for seed in setting.scores.dropna(how="all").index}
    sentences = []
    if min(counts) < len(fixed):
        have = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
        sentences.append(
            f"**Interim**: rows have {have} of the {len(fixed)} seeds that were fixed beforehand. "
            "What is bold may change."
        )
    if added := sorted(seeds - set(fixed)):
        sentences.append(
            f"**Seeds added**: {', '.join(map(str, added))}, beside the {len(fixed)} that were fixed beforehand. "
            "Nothing that is bold here is the board's."
        )
    return sentences


def page(suite: Suite, plan: Plan, board: Sequence[Setting]) -> str:
    """The page: for every table the comparison on each of its data sets with its resolution, and the costs."""
    reading = suite.reading(plan.scale)
    accuracy, goal_name = ACCURACY[reading]
    read = READ.format(accuracy=accuracy, beside="" if reading == "last_k_mean" else SMOOTH)
    parts = [markdown(f"# {suite.title}"), _provenance(suite, plan), *interim(suite, plan, board), read]
    for table in suite.tables:
        if of_table := [setting for setting in board if setting.table is table]:
            parts.append(markdown(f"## {table.title}"))
            for setting in of_table:
                parts += [pipe_table(*_lines(setting)), resolved(setting), power(setting)]
            parts += [CONTROLS if table.controls else "", "What it costs", _costs(of_table, goal_name)]
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(suite: Suite, plan: Plan, board: Sequence[Setting]) -> str:
    """A ``booktabs`` table per setting; rows are named and ordered as on the page, and Δ is bold there too."""
    accuracy, _ = ACCURACY[suite.reading(plan.scale)]
    read = f"{accuracy} in percent, mean ± half-width of the 95 % t interval (seeds). {LATEX_READ}"
    notes = [read, *(text.replace("**", "") for text in interim(suite, plan, board))]
    parts = [r"% Made from records; needs \usepackage{booktabs}."]
    for setting in board:
        parts.append(latex_table([f"{setting.table.title}, {setting.dataset}", *notes], *_lines(setting, short=True)))
    return "\n".join([*parts, ""])


def write(suite: Suite, plan: Plan, results: Path, name: str) -> list[Path]:
    """Write ``tables/<name>-leaderboard.md``, ``.csv`` and ``.tex``, and a picture.

    The picture, ``tables/<name>-leaderboard.svg``, shows the settings in which every row has ``LEAST`` seeds. Returns
    the files that changed; nothing is written as long as nothing was run.
    """
    board = settings(suite, plan)
    if not board:
        return []
    file = results / "tables" / f"{name}-leaderboard"
    texts = {
        file.with_suffix(".md"): page(suite, plan, board),
        file.with_suffix(".csv"): csv_text(frame(board)),
        file.with_suffix(".tex"): latex(suite, plan, board),
    }
    if drawn := [setting for setting in board if (setting.lines["n"] + setting.lines["failed"] >= LEAST).all()]:
        texts[file.with_suffix(".svg")] = svg_text(draw_differences(drawn))
    return write_changed(texts)


def _lines(setting: Setting, short: bool = False) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of a setting's table."""
    body = [[method, *_cells(setting, method, short).values()] for method in setting.order]
    return ["method", *_cells(setting, setting.reference, short)], body


def _cells(setting: Setting, method: str, short: bool) -> dict[str, str]:
    """What stands in the row of a method about one data set, by the title of the column."""
    line = setting.lines.loc[method]
    mean = f"{line['mean']:.2f}{half(line['ci95'])} ({_seeds(line)})"
    difference = number(line["difference"], "{:+.2f}") + half(line["difference_ci95"])
    role = "bound" if method in setting.table.bounds else "control" if method in setting.table.untested else ""
    cells = {
        setting.dataset: mean if line["converged"] else f"{mean}, not converged",
        f"mean of the last {setting.averaged}": f"{line['last_k_mean']:.2f}{half(line['last_k_ci95'])}",
        f"Δ to {setting.reference}": f"**{difference}**" if told_apart(setting, method) else difference,
        "simultaneous": half(line["simultaneous_ci95"]).strip(),
        "p (Holm)": _p(line["p_holm"]),
        "p (sign flips)": _p(line["p_flip"]),
        "above": number(100 * line["above"], "{:.0f} %"),
        "rise": number(line["rise"], "{:+.1f}"),
        "rank": role or number(line["rank"], "{:.1f}"),
    }
    for title, name, form, width in BESIDE:
        if name in setting.lines:
            cells[title] = number(line[name], form) + (half(line[width]) if width else "")
    if "untuned_n" in setting.lines and (ran := _seeds(line, "untuned_")):
        cells["at its paper's rates"] += f" ({ran})"
    cells["tuned"] = line["tuned"]
    if short:
        cells = {head: cells[head] for head in (setting.dataset, f"Δ to {setting.reference}", "simultaneous", "rank")}
    if not line["n"]:
        rank = cells["rank"] if line["failed"] else ""
        return {**dict.fromkeys(cells, ""), setting.dataset: _seeds(line) or "not run", "rank": rank}
    return cells


def _seeds(line: pd.Series, prefix: str = "") -> str:
    """Seeds with a score and those that have failed: ``5``, ``4, 1 failed`` or ``5 failed``."""
    scored, failed = line[f"{prefix}n"], line[f"{prefix}failed"]
    counts = (f"{scored:.0f}" if scored > 0 else "", f"{failed:.0f} failed" if failed > 0 else "")
    return ", ".join(filter(None, counts))


def _costs(of_table: Sequence[Setting], goal_name: str) -> str:
    """What every row spends until it has its reference's accuracy, which ``goal_name`` says in words."""
    head = ["data set", "method", "seeds that reach it", *COSTS]
    body = []
    for setting in of_table:
        accuracy = number(setting.lines["goal"].iloc[0], "{:.1f} %") or f"no run of {setting.reference}"
        goal = f"{setting.dataset}, {accuracy}"
        for method, line in setting.lines.iterrows():
            if line["n"]:
                costs = [number(line[name] / unit, form) for name, unit, form in COSTS.values()]
                body.append([goal, str(method), f"{line['reached']:.0f} of {line['n']:.0f}", *costs])
                goal = ""
    legend = (
        f"Until an evaluated round first has the reference's {goal_name}; means over the seeds that reach it, "
        "of the seconds medians. Seconds of several machines, or of busy ones, tell little. Client state: what all "
        "clients together keep between their visits if each of them takes part."
    )
    return f"{legend}\n\n{pipe_table(head, body)}"


def _provenance(suite: Suite, plan: Plan) -> str:
    """Where the numbers come from."""
    records = [run.record for run in plan.found.values() if run.record is not None]
    configs = [plan.runs[key].config for key, run in plan.found.items() if run.record is not None]
    hours = sum(record["timing"]["seconds"] for record in records) / 3600
    parts = {
        "scale": f"{plan.scale} ({suite.scale(plan.scale).note or 'own protocol'})",
        "network": ", ".join(sorted({network(config) for config in configs})),
        "rounds": ", ".join(map(str, sorted({config.rounds for config in configs}))),
        "runs": f"{len(records)} of {len(plan.found)} complete, {hours:.1f} hours",
        "hardware": ", ".join(sorted({hardware(record["environment"]) for record in records})),
        "code": ", ".join(sorted({version for record in records for version in code_versions(record)})),
    }
    return markdown("; ".join(f"{name}: {text}" for name, text in parts.items()) + ".")


def _p(value: Any) -> str:
    return "< 0.001" if value < 0.001 else number(value, "{:.3f}")
