"""The papers' tables, from records: Markdown, CSV and data frames. Nothing in them is typed by hand."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student_t
from tabulate import tabulate

from benchmark.config import RunConfig, differences, folder
from benchmark.files import write_atomic
from benchmark.launch.environment import hardware
from benchmark.report.records import Record, read_record, state
from benchmark.suites.suite import Plan, PlannedRun, Suite, Table, operands
from datamodules.common.errors import ConfigError

READING = {"best": "best", "last": "final", "last_k_mean": "last_k_mean"}
SAY = {
    "best": "the round of best test accuracy",
    "last": "the last round",
    "last_k_mean": "the mean of the last {last}",
}
NUMBERS = ("ours", "std", "ci95", "delta", *READING)
LEFT = ("table", "dataset", "data", "network", "method")
RIGHT = ("metric", "ours", "std", "ci95", "n", "published", "spread", "delta", "status", *READING, "runs")
LACKS = ("failed", "damaged", "outdated", "running", "stale", "missing")  # of a seed's runs, the first that holds
BROKEN = LACKS[:3]  # a row with such a seed is not judged


@dataclass(frozen=True)
class Run:
    """What is known of a planned run: its state and, once complete, its record."""

    state: str
    record: Record | None


@dataclass(frozen=True)
class Rendered:
    """One table in all its forms."""

    number: str
    frame: pd.DataFrame
    markdown: str

    @property
    def csv(self) -> str:
        """The frame as CSV; numbers with four decimals, published values as printed (empty where there is none)."""
        return str(self.frame.to_csv(index=False, float_format="%.4f", lineterminator="\n"))


def collect(plan: Plan) -> dict[str, Run]:
    """State and record of every run of a plan, from disk.

    A complete run that was made under other defaults than today's counts as ``outdated``.
    """
    found = {}
    for key, run in plan.runs.items():
        path = folder(run.config)
        now, record = state(path), None
        if now == "complete":
            record = read_record(path)
            if differences(record["config"], run.config):
                now, record = "outdated", None
        found[key] = Run(now, record)
    return found


def render(suite: Suite, plan: Plan, runs: Mapping[str, Run], published: Mapping[Any, str]) -> list[Rendered]:
    """All tables of a suite.

    Args:
        suite: what to render.
        plan: its runs at one scale.
        runs: what became of them, by run id.
        published: printed values by ``Row.key``.

    Returns:
        One ``Rendered`` per table. Each line has a ``status``: what is missing of it (``1 of 3; failed (1)``), whether
        a value is published and, at the paper's scale, the verdict on ``delta`` once all seeds of the suite are
        complete. At other scales the published value stands beside ours for orientation only.
    """
    return [_render(suite, plan, runs, published, table) for table in suite.tables]


def write(suite: Suite, scale: str, tables: Sequence[Rendered], results: Path, readme: Path | None) -> list[Path]:
    """Write ``tables/<paper>-<scale>.md`` and ``.csv`` and the marked blocks of ``readme``.

    The block ``table:<paper>-<scale>`` (see ``replace_block``) receives all tables, the block
    ``table:<paper>-<scale>-<number>`` that one. Returns the files that changed.
    """
    name = f"{suite.paper}-{scale}"
    whole = f"# {suite.title}\n\n" + "\n".join(table.markdown for table in tables)
    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    own = [c for c in frame if c not in (*LEFT, *RIGHT)]
    frame = frame[[c for c in (*LEFT, *own, *RIGHT) if c in frame]]
    texts = {
        results / "tables" / f"{name}.md": whole,
        results / "tables" / f"{name}.csv": Rendered("", frame, "").csv,
    }
    if readme is not None and readme.exists():
        text = readme.read_text(encoding="utf-8")
        for block, body in [(name, whole), *((f"{name}-{t.number}", t.markdown) for t in tables)]:
            text = replace_block(text, f"table:{block}", body)
        texts[readme] = text
    changed = []
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
            changed.append(path)
    return changed


def replace_block(text: str, name: str, body: str) -> str:
    """``text`` with ``body`` between ``<!-- name:begin -->`` and ``<!-- name:end -->``, if it has them."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    return f"{head}{begin}\n{body.strip()}\n{end}{tail}" if found and closed else text


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample (divisor n - 1); ``None`` for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % t interval of the mean; ``None`` for fewer than two values."""
    n, spread = len(values), deviation(values)
    return None if spread is None else float(student_t.ppf(0.975, n - 1)) * spread / math.sqrt(n)


def network(config: RunConfig) -> str:
    """The network that was trained: its name, and the arguments it was given, e.g. ``resnet9 (width=4)``."""
    args = ", ".join(f"{name}={value}" for name, value in config.model_args.items())
    return f"{config.model} ({args})" if args else config.model


def last_rounds(config: RunConfig) -> str:
    """What ``last_k_mean`` averages: ``10 rounds``, or ``10 rounds (2 of them evaluated)``."""
    last = range(max(0, config.rounds - config.last_k), config.rounds)
    evaluated = sum((r + 1) % config.eval_every == 0 or r + 1 == config.rounds for r in last)
    told = f"{config.last_k} rounds"
    return told if evaluated == len(last) else f"{told} ({evaluated} of them evaluated)"


def difference(ours: float, printed: str) -> float:
    """Ours minus the printed value, ours rounded as the printed one is."""
    places = len(printed.partition(".")[2])
    return round(round(ours, places) - float(printed), places)


def judge(delta: float, band: float | None) -> str:
    """``reproduced`` within the band, ``close`` within twice the band, else ``not reproduced``."""
    if band is None:
        return "no band"
    size = abs(delta) - 1e-9
    return "reproduced" if size <= band else "close" if size <= 2 * band else "not reproduced"


def _render(suite: Suite, plan: Plan, runs: Mapping[str, Run], published: Mapping[Any, str], table: Table) -> Rendered:
    compare = suite.compares(plan.scale)
    hidden = () if compare else suite.replaced
    columns = list(dict.fromkeys(c for row in table.rows for c in row.columns if c not in hidden))
    whole = set(suite.scale(plan.scale)["seeds"]) <= set(plan.seeds)
    rows = [row for row in table.rows if row.method not in suite.left_out(plan.scale)]
    of_data = {r.dataset: plan.run(r, plan.seeds[0]).config for r in rows if not (r.minus or r.pending)}
    blocks = []
    for row in rows:
        block = []
        parts = operands(row, rows) if row.minus else (row,)
        groups = [] if row.pending else [[plan.run(part, seed) for part in parts] for seed in plan.seeds]
        for metric in table.metrics:
            printed = published.get(row.key(metric))
            spread = published.get(row.key(f"{metric} std"))
            judged, judged_spread, where = printed, spread, ""
            if row.judged_by:
                other = replace(row, table=row.judged_by)
                judged, judged_spread = published.get(other.key(metric)), published.get(other.key(f"{metric} std"))
                if judged is None:
                    raise ConfigError(f"{suite.where}, {row.name}: judged_by: there is no {metric} of {other.name}")
                where = f", by table {row.judged_by}: {judged}{f' ± {judged_spread}' if judged_spread else ''}"
            band = suite.band(row, metric, judged_spread)
            head = {"table": table.number, "dataset": row.dataset}
            if not compare:
                config = groups[0][0].config if groups else of_data.get(row.dataset)  # a pending row: its neighbours'
                head |= {"data": config.data.name if config else "-", "network": network(config) if config else "-"}
            head |= {"method": row.method, **{c: row.columns[c] for c in columns if c in row.columns}, "metric": metric}
            line = _line(groups, runs, suite.report, metric)
            line |= {"published": printed, "spread": spread, "lacks": "pending" if row.pending else line["lacks"]}
            verdict = "" if printed or not published else f"published: {table.unpublished}"
            if compare:
                line["delta"] = difference(line["ours"], judged) if judged and line["n"] else None
                if line["delta"] is not None and not line["broken"]:
                    verdict = judge(line["delta"], band) + where if whole else "other seeds"
            line["status"] = "; ".join(filter(None, (line["lacks"], verdict)))
            block.append(head | line)
        blocks.append(block)
    if suite.ranked:
        blocks.sort(key=lambda block: -math.inf if block[0]["ours"] is None else block[0]["ours"], reverse=True)
    frame = pd.DataFrame([line for block in blocks for line in block])
    for name in NUMBERS:
        if name in frame:
            frame[name] = frame[name].astype("float64")
    if not published:
        frame = frame.drop(columns="published")
    parts_of_page = (
        f"### Table {table.number}: {table.title}",
        _provenance(suite, plan, runs, table),
        _markdown(frame, compare, columns, table.unpublished),
        _footer(suite, plan, compare, bool(published)),
    )
    if not frame["spread"].any():
        frame = frame.drop(columns="spread")
    frame = frame[[c for c in (*LEFT, *columns, *RIGHT) if c in frame]]
    return Rendered(table.number, frame, "\n\n".join(parts_of_page) + "\n")


def _line(groups: Sequence[Sequence[PlannedRun]], runs: Mapping[str, Run], report: str, metric: str) -> dict[str, Any]:
    """The numbers of one line; ``groups`` are its runs by seed (two per seed where a difference is shown)."""
    ids = list(dict.fromkeys(run.id for group in groups for run in group))
    found = [[runs[run.id] for run in group] for group in groups]
    ours = _values(found, report, metric)
    line: dict[str, Any] = {"ours": _mean(ours), "std": deviation(ours), "ci95": interval(ours), "n": len(ours)}
    for reading in READING:
        line[reading] = _mean(_values(found, reading, metric)) if metric == "acc" else None
    broken = any(run.state in BROKEN for group in found for run in group)
    lacks = _lacks(found, len(ours))
    return {**line, "planned": len(groups), "lacks": lacks, "broken": broken, "runs": " ".join(ids)}


def _lacks(groups: Sequence[Sequence[Run]], n: int) -> str:
    """Why only ``n`` of the seeds have a value, e.g. ``1 of 3; failed (1)``; empty where all have."""
    if n == len(groups):
        return ""
    reasons = [next((s for s in LACKS if any(run.state == s for run in group)), "complete") for group in groups]
    told = [f"{n} of {len(groups)}"] if n else []
    told += [f"{reason} ({reasons.count(reason)})" for reason in LACKS[:-1] if reason in reasons]
    return "; ".join(told) or ("not run" if "missing" in reasons else "no value")


def _values(groups: Sequence[Sequence[Run]], reading: str, metric: str) -> list[float]:
    """One value per seed whose runs are complete; of two runs their difference."""
    values = []
    for group in groups:
        got = [run.record[READING[reading]].get(metric) for run in group if run.record is not None]
        if len(got) == len(group) and None not in got:
            values.append(got[0] - sum(got[1:]))
    return values


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _provenance(suite: Suite, plan: Plan, runs: Mapping[str, Run], table: Table) -> str:
    without = suite.left_out(plan.scale)
    rows = [row for row in table.rows if id(row) in plan.of_row]
    planned = {run.id: run for row in rows for seed in plan.seeds for run in [plan.run(row, seed)]}
    records = [record for key in planned if (record := runs[key].record) is not None]
    configs = [run.config for run in planned.values()]

    def listed(values: Any) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    parts = [
        f"data: {listed(c.data.name for c in configs)}",
        f"scale: {plan.scale} ({suite.scale(plan.scale).get('note', 'own protocol')})",
        f"rounds: {listed(sorted({c.rounds for c in configs}))}",
        *(
            [f"precision: {listed(c.precision for c in configs)}"]
            if any(c.precision != "32-true" for c in configs)
            else []
        ),
        f"seeds: {listed(plan.seeds)}",
        f"reading: {SAY[suite.report].format(last=listed(map(last_rounds, configs)))}",
        f"hardware: {listed(sorted({hardware(r['environment']) for r in records})) or '-'}",
        f"code: {listed(sorted({r['code_version'] for r in records})) or '-'}",
    ]
    if len(records) < len(planned):
        parts.append(f"**{len(records)} of {len(planned)} runs complete**")
        for bad in ("failed", "outdated"):
            ids = [key for key in planned if runs[key].state == bad]
            parts += [f"{bad}: {', '.join(ids)}"] if ids else []
    for label in dict.fromkeys(row.method for row in table.rows if row.method in without):
        parts.append(f"not at this scale: {label} ({without[label]})")
    for reason in dict.fromkeys(row.pending for row in table.rows if row.pending):
        names = dict.fromkeys(f"{row.dataset} {row.method}" for row in table.rows if row.pending == reason)
        parts.append(f"pending: {', '.join(names)} ({reason})")
    return "; ".join(parts) + "."


def _footer(suite: Suite, plan: Plan, compare: bool, printed: bool) -> str:
    last = " or ".join(dict.fromkeys(last_rounds(run.config) for run in plan.runs.values()))
    text = [
        "Ours: mean ± half-width of the 95 % t interval (number of seeds), in percent.",
        f"For accuracy all three readings are shown: best round, last round, mean of the last {last}.",
    ]
    if suite.ranked:
        text += ["Rows are ordered by ours; those whose intervals overlap are not told apart."]
    if printed:
        text += ["Published spreads are standard deviations, to be held against `std` in the CSV (divisor n − 1)."]
    if compare:
        bands = ", ".join(f"{metric} {band}" for metric, band in suite.bands.items())
        if suite.band_spreads:
            bands += f", or {suite.band_spreads} published standard deviations if that is more"
        note = f" ({suite.spec['band_note']})" if "band_note" in suite.spec else ""
        text += [
            "Δ: ours, rounded as printed, minus published.",
            "Status: reproduced if |Δ| is at most the band, close if at most twice the band, else not reproduced, with "
            f"the number of seeds that this rests on where it is not all; bands: {bands}{note}.",
        ]
    elif printed:
        text += ["Published values belong to the paper's data and protocol: no comparison is meant."]
    return " ".join(text)


def _markdown(frame: pd.DataFrame, compare: bool, columns: list[str], unpublished: str) -> str:
    head = ["dataset", "method", *columns, "metric", "ours"]
    head += ["published"] if "published" in frame else []
    head += ["Δ", "status"] if compare else []
    head += ["best", "last", "last-k mean"]
    body, before = [], None
    for line in frame.to_dict("records"):
        data = line["dataset"] if compare else f"{line['data']} (as {line['dataset']}), {line['network']}"
        keys = [data, line["method"], *[_text(line.get(c)) for c in columns]]
        shown = [""] * len(keys) if keys == before else ["" if before and data == before[0] else data, *keys[1:]]
        before = keys
        printed, spread = _text(line.get("published")) or unpublished, _text(line["spread"])
        shown_printed = f"{printed} ± {spread}" if spread else printed
        cells = [*shown, line["metric"], _ours(line)]
        if "published" in frame:
            cells += [shown_printed if compare else f"<sub>{shown_printed}</sub>"]
        if compare:
            places = len(printed.partition(".")[2])
            cells += [_number(line["delta"], f"+.{places}f"), line["status"]]
        cells += [_number(line.get(reading)) for reading in READING]
        body.append(cells)
    return str(tabulate(body, [h.replace("_", " ") for h in head], tablefmt="pipe", disable_numparse=True))


def _ours(line: Mapping[str, Any]) -> str:
    if not line["n"]:
        return str(line["lacks"])
    half = _number(line["ci95"])
    count = f"{line['n']} of {line['planned']}" if line["n"] < line["planned"] else line["n"]
    return f"{_number(line['ours'])}{f' ± {half}' if half else ''} ({count})"


def _number(value: Any, form: str = ".2f") -> str:
    return "" if value is None or pd.isna(value) else format(value, form)


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else str(value)
