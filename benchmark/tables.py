"""The papers' tables, from records: Markdown, CSV and data frames. Nothing in them is typed by hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student_t
from tabulate import tabulate

from benchmark.config import differences, folder
from benchmark.environment import hardware
from benchmark.files import write_atomic
from benchmark.records import Record, read_record, state
from benchmark.suite import Plan, PlannedRun, Suite, Table, operands

READING = {"best": "best", "last": "final", "last_k_mean": "last_k_mean"}
SAY = {
    "best": "the round of best test accuracy",
    "last": "the last round",
    "last_k_mean": "the mean of the last {k} rounds",
}
NUMBERS = ("ours", "ci95", "delta", *READING)
LEFT = ("table", "dataset", "data", "network", "method")
RIGHT = ("metric", "ours", "ci95", "n", "published", "spread", "delta", "status", *READING, "runs")


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
        """The frame as CSV; numbers with four decimals, published values as printed."""
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
        One ``Rendered`` per table. At the paper's scale each line has ``delta`` and ``status``; at other
        scales the published value stands beside ours for orientation only.
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


def interval(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % t interval of the mean; ``None`` for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return float(student_t.ppf(0.975, n - 1)) * spread / math.sqrt(n)


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
    of_data = {r.dataset: plan.run(r, plan.seeds[0]).config for r in table.rows if not (r.minus or r.pending)}
    lines = []
    for row in table.rows:
        parts = operands(row, table.rows) if row.minus else (row,)
        groups = [] if row.pending else [[plan.run(part, seed) for part in parts] for seed in plan.seeds]
        for metric in table.metrics:
            printed = published.get(row.key(metric))
            spread = published.get(row.key(f"{metric} std"))
            band = suite.band(row, metric, spread)
            head = {"table": table.number, "dataset": row.dataset}
            if not compare:
                config = groups[0][0].config if groups else of_data.get(row.dataset)  # a pending row: its neighbours'
                head |= {"data": config.data.name, "network": config.model} if config else {"data": "-", "network": "-"}
            head |= {"method": row.method, **{c: row.columns[c] for c in columns if c in row.columns}, "metric": metric}
            line = _line(groups, runs, suite.report, metric, printed, band, compare)
            if spread:
                line["spread"] = spread
            if not printed:
                line["published"] = table.unpublished
            if row.pending:
                line["status"] = "pending"
            lines.append(head | line)
    frame = pd.DataFrame(lines)
    for name in NUMBERS:
        if name in frame:
            frame[name] = frame[name].astype("float64")
    parts_of_page = (
        f"### Table {table.number}: {table.title}",
        _provenance(suite, plan, runs, table),
        _markdown(frame, compare, columns),
        _footer(suite, plan, compare),
    )
    frame = frame[[c for c in (*LEFT, *columns, *RIGHT) if c in frame]]
    kept = frame if compare else frame.drop(columns="status")
    return Rendered(table.number, kept, "\n\n".join(parts_of_page) + "\n")


def _line(
    groups: Sequence[Sequence[PlannedRun]],
    runs: Mapping[str, Run],
    report: str,
    metric: str,
    printed: str | None,
    band: float | None,
    compare: bool,
) -> dict[str, Any]:
    """The numbers of one line; ``groups`` are its runs by seed (two per seed where a difference is shown)."""
    ids = list(dict.fromkeys(run.id for group in groups for run in group))
    found = [[runs[run.id] for run in group] for group in groups]
    ours = _values(found, report, metric)
    mean = _mean(ours)
    line: dict[str, Any] = {"ours": mean, "ci95": interval(ours), "n": len(ours), "published": printed}
    line["status"] = "running" if any(runs[key].state == "running" for key in ids) else ""
    if mean is None:
        line["status"] = line["status"] or "not run"
    elif compare:
        line["delta"] = difference(mean, printed) if printed else None
        line["status"] = line["status"] or (judge(line["delta"], band) if printed else "no band")
    if compare:
        line.setdefault("delta", None)
    for reading in READING:
        line[reading] = _mean(_values(found, reading, metric)) if metric == "acc" else None
    return {**line, "runs": " ".join(ids)}


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
    rows = [row for row in table.rows if row.minus is None and not row.pending]
    planned = {run.id: run for row in rows for seed in plan.seeds for run in [plan.run(row, seed)]}
    records = [record for key in planned if (record := runs[key].record) is not None]
    configs = [run.config for run in planned.values()]

    def listed(values: Any) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    parts = [
        f"data: {listed(c.data.name for c in configs)}",
        f"scale: {plan.scale} ({suite.scale(plan.scale).get('note', 'own protocol')})",
        f"rounds: {listed(sorted({c.rounds for c in configs}))}",
        f"seeds: {listed(plan.seeds)}",
        f"reading: {SAY[suite.report].format(k=listed(c.last_k for c in configs))}",
        f"hardware: {listed(sorted({hardware(r['environment']) for r in records})) or '-'}",
        f"code: {listed(sorted({r['code_version'] for r in records})) or '-'}",
    ]
    if len(records) < len(planned):
        failed = [key for key in planned if runs[key].state == "failed"]
        parts.append(f"**{len(records)} of {len(planned)} runs complete**")
        parts += [f"failed: {', '.join(failed)}"] if failed else []
    for reason in dict.fromkeys(row.pending for row in table.rows if row.pending):
        names = dict.fromkeys(f"{row.dataset} {row.method}" for row in table.rows if row.pending == reason)
        parts.append(f"pending: {', '.join(names)} ({reason})")
    return "; ".join(parts) + "."


def _footer(suite: Suite, plan: Plan, compare: bool) -> str:
    k = ", ".join(map(str, dict.fromkeys(run.config.last_k for run in plan.runs.values())))
    text = [
        "Ours: mean ± half-width of the 95 % t interval (number of seeds), in percent.",
        f"For accuracy all three readings are shown: best round, last round, mean of the last {k} rounds.",
    ]
    if compare:
        bands = ", ".join(f"{metric} {band}" for metric, band in suite.bands.items())
        if suite.band_spreads:
            bands += f", or {suite.band_spreads} published standard deviations if that is more"
        note = f" ({suite.spec['band_note']})" if "band_note" in suite.spec else ""
        text += [
            "Δ: ours, rounded as printed, minus published.",
            "Status: reproduced if |Δ| is at most the band, close if at most twice the band, else not "
            f"reproduced; bands: {bands}{note}.",
        ]
    else:
        text += ["Published values belong to the paper's data and protocol: no comparison is meant."]
    return " ".join(text)


def _markdown(frame: pd.DataFrame, compare: bool, columns: list[str]) -> str:
    head = ["dataset", "method", *columns, "metric", "ours", "published"]
    head += ["Δ", "status"] if compare else []
    head += ["best", "last", "last-k mean"]
    body, before = [], None
    for line in frame.to_dict("records"):
        data = line["dataset"] if compare else f"{line['data']} (as {line['dataset']}), {line['network']}"
        keys = [data, line["method"], *[_text(line.get(c)) for c in columns]]
        shown = [""] * len(keys) if keys == before else ["" if before and data == before[0] else data, *keys[1:]]
        before = keys
        printed, spread = _text(line["published"]), _text(line.get("spread"))
        shown_printed = f"{printed} ± {spread}" if spread else printed
        cells = [*shown, line["metric"], _ours(line)]
        cells += [shown_printed if compare else f"<sub>{shown_printed}</sub>"]
        if compare:
            places = len(printed.partition(".")[2])
            cells += [_number(line["delta"], f"+.{places}f"), line["status"]]
        cells += [_number(line.get(reading)) for reading in READING]
        body.append(cells)
    return str(tabulate(body, [h.replace("_", " ") for h in head], tablefmt="pipe", disable_numparse=True))


def _ours(line: Mapping[str, Any]) -> str:
    if not line["n"]:
        return str(line["status"])
    half = _number(line["ci95"])
    return f"{_number(line['ours'])}{f' ± {half}' if half else ''} ({line['n']})"


def _number(value: Any, form: str = ".2f") -> str:
    return "" if value is None or pd.isna(value) else format(value, form)


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else str(value)
