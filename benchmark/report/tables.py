"""The papers' tables, computed from records."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.config import RunConfig
from benchmark.report.cells import BROKEN, Cell, Cells
from benchmark.report.formats import csv_text, markdown
from benchmark.report.frame import Values, by_row, long_frame
from benchmark.report.layout import OURS, Rendered, varying
from benchmark.runs.environment import hardware
from benchmark.runs.records import READING, Record, code_versions
from benchmark.suites.plan import Plan, Table
from benchmark.suites.suite import Suite
from datamodules.common.files import write_changed

SAY = {
    "best": "the round of best test accuracy",
    "last": "the last round",
    "last_k_mean": "the mean of the last {last}",
    "averaged": "one model, the mean of the global weights of the last {averaged}",
}
VERDICT = (
    "prediction",
    "effect",
    "effect_ci95",
    "effect_prediction",
    "effect_n",
    "effect_published",
)  # at a comparable scale
NUMBERS = ("ours", "std", "ci95", "delta", *VERDICT, *READING)
LEFT = ("table", "dataset", "data", "network", "method")
RIGHT = (
    "metric",
    "ours",
    "std",
    "ci95",
    "n",
    "published",
    "spread",
    "delta",
    *VERDICT,
    "status",
    "note",
    *READING,
    "runs",
)


def render(suite: Suite, plan: Plan, published: Mapping[Any, str]) -> list[Rendered]:
    """Render all tables of a suite.

    Args:
        suite: the suite.
        plan: its runs at one scale.
        published: printed values by ``Row.key``.

    Returns:
        One ``Rendered`` per table. Each line has a ``status``: what is missing (``1 of 3; failed (1)``), whether a
        value is published and, at the paper's scale, the verdict on the printed lead (``Lead.verdict``). ``note`` says
        why it is open: too few seeds, too wide an interval, a failed run of the row or of its control, or seeds other
        than the suite's while these are not complete. At other scales the published value is for orientation only.
    """
    known = by_row(long_frame(suite, plan))
    return [_render(suite, plan, published, table, known) for table in suite.tables]


def write(suite: Suite, scale: str, tables: Sequence[Rendered], results: Path) -> list[Path]:
    """Write ``tables/<paper>-<scale>`` as ``.md``, ``.csv`` and ``.tex``; returns the changed files."""
    files = results / "tables" / f"{suite.paper}-{scale}"
    return write_changed(
        {files.with_name(files.name + suffix): text for suffix, text in exports(suite, tables).items()}
    )


def exports(suite: Suite, tables: Sequence[Rendered]) -> dict[str, str]:
    """Return all tables of a suite at a scale as file contents, by suffix."""
    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    own = [c for c in frame if c not in (*LEFT, *RIGHT)]
    frame = frame[[c for c in (*LEFT, *own, *RIGHT) if c in frame]]
    return {
        ".md": "\n".join([markdown(f"# {suite.title}") + "\n", *(table.markdown for table in tables)]),
        ".csv": csv_text(frame),
        ".tex": r"% Made from records; needs \usepackage{booktabs}." + "\n" + "\n".join(t.latex for t in tables),
    }


def last_rounds(config: RunConfig) -> str:
    """Describe what ``last_k_mean`` averages: ``10 rounds``, or ``10 rounds (2 of them evaluated)``."""
    last = range(max(0, config.rounds - config.last_k), config.rounds)
    evaluated = sum((r + 1) % config.eval_every == 0 or r + 1 == config.rounds for r in last)
    told = f"{len(last)} round{'s' if len(last) > 1 else ''}"
    return told if evaluated == len(last) else f"{told} ({evaluated} of them evaluated)"


def averaged_rounds(config: RunConfig) -> str:
    """Describe what ``averaged`` averages, e.g. ``20 rounds``."""
    count = min(config.average_last, config.rounds)
    return f"{count} round{'s' if count > 1 else ''}"


def _render(suite: Suite, plan: Plan, published: Mapping[Any, str], table: Table, known: Values) -> Rendered:
    compare = suite.compares(plan.scale)
    hidden = () if compare else suite.replaced
    at_scale = replace(table, rows=tuple(row for row in table.rows if row.method not in suite.left_out(plan.scale)))
    columns = tuple(dict.fromkeys(c for row in at_scale.rows for c in row.columns if c not in hidden))
    make = Cells(suite, plan, published, at_scale, known)
    blocks = [[make.cell(row, metric) for metric in table.metrics] for row in at_scale.rows]
    if suite.ranked:
        blocks.sort(key=lambda block: _place(plan, block[0]))
    cells = tuple(cell for block in blocks for cell in block)
    return Rendered(
        name=f"{suite.paper}-{plan.scale}-{table.number}",
        number=table.number,
        title=table.title,
        scale=plan.scale,
        compare=compare,
        cells=cells,
        frame=_frame(table, cells, columns, compare, bool(published)),
        columns=columns,
        facts=_facts(suite, plan, table, cells, columns),
        legend=_legend(suite, table, compare, bool(published)),
        unpublished=table.unpublished,
        readings=_readings(cells, varying(cells, columns), plan),
    )


def _place(plan: Plan, cell: Cell) -> tuple[int, float]:
    """Where a row of a ranked suite stands: by failed runs, so that survivors place no row, then by the mean."""
    return sum(plan.found[key].state == "failed" for key in cell.runs), math.inf if cell.ours is None else -cell.ours


def _frame(table: Table, cells: Sequence[Cell], columns: Sequence[str], compare: bool, printed: bool) -> pd.DataFrame:
    """Return the lines in long form."""
    rows = []
    for cell in cells:
        row: dict[str, Any] = {"table": table.number, "dataset": cell.row.dataset, "method": cell.row.method}
        row |= {"data": cell.data, "network": cell.network, "metric": cell.metric, **cell.row.columns}
        row |= {"ours": cell.ours, "std": cell.std, "ci95": cell.ci95, "n": cell.n, **cell.readings}
        row |= {"published": cell.published, "spread": cell.spread, "delta": cell.judged.delta}
        row["prediction"] = cell.judged.level
        if lead := cell.judged.lead:
            of_lead = (lead.ours, lead.half, lead.prediction, lead.n, lead.printed)
            row |= dict(zip(VERDICT[1:], of_lead, strict=True))
        rows.append({**row, "status": cell.status, "note": cell.judged.note, "runs": " ".join(cell.runs)})
    frame = pd.DataFrame(rows, columns=[*LEFT, *columns, *RIGHT]).astype(dict.fromkeys(NUMBERS, "float64"))
    left_out = {"data", "network"} if compare else {"delta", "note", *VERDICT}
    left_out |= set() if printed else {"published"}
    left_out |= set() if any(cell.spread for cell in cells) else {"spread"}
    left_out |= set() if any("averaged" in cell.readings for cell in cells) else {"averaged"}
    return frame[[c for c in (*LEFT, *columns, *RIGHT) if c not in left_out]]


def _readings(cells: Sequence[Cell], heads: Sequence[str], plan: Plan) -> pd.DataFrame:
    """Accuracy in all readings of what was run."""
    own = [key for cell in cells for key in cell.runs]
    last = " or ".join(dict.fromkeys(last_rounds(plan.runs[key].config) for key in own))
    averaged = " or ".join(dict.fromkeys(averaged_rounds(plan.runs[key].config) for key in own))
    named = {"best": "best round", "last": "last round", "last_k_mean": f"mean of the last {last}"}
    named |= {"averaged": f"averaged model of the last {averaged}"}
    rows: list[dict[str, Any]] = [
        {
            "method": cell.row.method,
            **{c: cell.row.columns.get(c) for c in heads},
            "data set": cell.row.dataset,
            **{named[name]: value for name, value in cell.readings.items()},
        }
        for cell in cells
        if cell.metric == "acc" and cell.n
    ]
    return pd.DataFrame(rows)


def _facts(suite: Suite, plan: Plan, table: Table, cells: Sequence[Cell], columns: Sequence[str]) -> dict[str, str]:
    """Facts about the runs of a table, by name; a text without a name has the empty one."""
    without = suite.left_out(plan.scale)
    rows = [row for row in table.rows if row.full_name in plan.of_row]
    planned = {run.id: run for row in rows for seed in plan.seeds for run in [plan.run(row, seed)]}
    records = [record for key in planned if (record := plan.found[key].record) is not None]
    configs = [run.config for run in planned.values()]
    precisions = {config.precision for config in configs}
    told_apart = varying(cells, columns)
    constant = {c: cells[0].row.columns.get(c, "") for c in columns if c not in told_apart}
    facts = {
        "data": _listed(c.data.name for c in configs),
        **({"metric": table.metrics[0]} if len(table.metrics) == 1 else {}),
        "network": _networks(cells),
        **{c.replace("_", " "): value for c, value in constant.items() if value},
        "scale": f"{plan.scale} ({suite.scale(plan.scale).get('note') or 'own protocol'})",
        "rounds": _listed(sorted({c.rounds for c in configs})),
        **({"precision": _listed(precisions)} if precisions - {"32-true"} else {}),
        "seeds": _listed(plan.seeds),
        "reading": SAY[suite.report].format(
            last=_listed(map(last_rounds, configs)), averaged=_listed(map(averaged_rounds, configs))
        ),
        "hardware": _listed(sorted({hardware(r["environment"]) for r in records})) or "-",
        "code": _listed(sorted({version for r in records for version in code_versions(r)})) or "-",
    }
    if mixed := _several(records):
        facts["**data of several versions**"] = mixed
    if len(records) < len(planned):
        facts[""] = f"**{len(records)} of {len(planned)} runs complete**"
        for bad in BROKEN:
            ids = [key for key in planned if plan.found[key].state == bad]
            facts |= {bad: ", ".join(ids)} if ids else {}
    left = dict.fromkeys(row.method for row in table.rows if row.method in without)
    if left:
        facts["not at this scale"] = ", ".join(f"{label} ({without[label]})" for label in left)
    waiting: dict[str, list[str]] = {}
    for row in table.rows:
        if row.pending:
            waiting.setdefault(row.pending, []).append(f"{row.dataset} {row.method}")
    if waiting:
        facts["pending"] = ", ".join(f"{_listed(names)} ({reason})" for reason, names in waiting.items())
    return facts


def _several(records: Iterable[Record]) -> str:
    """Name the files of which these runs have read several versions."""
    read = {(name, digest) for record in records for name, digest in (record.get("data_sha256") or {}).items()}
    names = [name for name, _ in sorted(read)]
    return _listed(name for name in names if names.count(name) > 1)


def _networks(cells: Sequence[Cell]) -> str:
    """Name the network of most cells, then each other one with its methods and data sets."""
    cells_of: dict[str, list[tuple[str, str]]] = {}
    for cell in cells:
        cells_of.setdefault(cell.network, []).append((cell.row.method, cell.row.dataset))
    told: list[str] = []
    for name, own in sorted(cells_of.items(), key=lambda item: -len(item[1])):
        others = [one for other, found in cells_of.items() if other != name for one in found]
        methods, data = (list(dict.fromkeys(values)) for values in zip(*own, strict=True))
        if not {method for method, _ in others} & set(methods):
            who = _listed(methods)
        elif not {dataset for _, dataset in others} & set(data):
            who = _listed(data)
        elif len(set(own)) == len(methods) * len(data):
            who = f"{_listed(methods)} on {_listed(data)}"
        else:
            who = _listed(f"{method} on {dataset}" for method, dataset in own)
        told.append(f"{name} ({who})" if told else name)
    return "; ".join(told)


def _listed(values: Any) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _legend(suite: Suite, table: Table, compare: bool, printed: bool) -> str:
    text = [OURS]
    if suite.ranked:
        text += [
            "The best row on the first data set stands first, rows with failed runs last.",
            "Whether two rows differ is on the leaderboard's page.",
        ]
    if table.bounds:
        text += [f"Bounds, which know more labels than a method may: {', '.join(table.bounds)}."]
    if compare:
        runs = "one further run" if table.published_runs == 1 else f"the mean of {table.published_runs} further runs"
        text += [
            "Below it the published value and, in brackets, Δ: ours, rounded as printed, minus published, with the",
            f"half-width of our 95 % prediction interval for {runs}; it decides nothing.",
        ]
        if table.control:
            text += [
                f"Effect: the row minus {table.control}, paired by seed, ± half-width of its 95 % t interval, and in",
                "brackets the printed lead. Holds: the interval is on the printed side of 0, and the printed lead is",
                "not above our prediction interval; smaller: it is above; not seen: the interval contains 0 and",
                "excludes the printed lead; reversed: it is on the other side of 0; open: anything else.",
            ]
        else:
            text += ["The table has no control, so that no lead is printed and there are no verdicts."]
    elif printed:
        text += ["Published values, below ours, belong to the paper's data and protocol: no comparison is meant."]
    if printed:
        text += ["Published spreads are standard deviations, to be held against `std` in the CSV (divisor n − 1)."]
    return " ".join(text)
