"""Two runs side by side: where they differ in what was run, and the first round at which their results part."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmark.config import apart
from benchmark.report.statistics import LEAST, prediction
from benchmark.runs.records import READING, SEVERAL, Record, Row, code_versions, read_record, read_rows, without_clock
from benchmark.runs.states import state

COUNTING = ("config", "partition", "data", "status")


class Comparison(NamedTuple):
    """What was found.

    Args:
        lines: for people, one per subject.
        equal: whether configuration, partition, data, status, all rounds and the reading ``averaged``, which follows
            from no round, are equal. Code and environment do not count: the point of a comparison may be that other
            code, or another machine, gives the same numbers. Nor do options and columns that one run does not have:
            other code may know and log more.
        within: whether every reading of the second run lies within its prediction interval of the first run's row;
            the intervals jointly hold with 95 % confidence. ``None`` where fewer than three seeds of that row are at
            hand, or the two runs are of different rows.
    """

    lines: list[str]
    equal: bool
    within: bool | None = None


def compare(one: Path, other: Path) -> Comparison:
    """Compare two runs by their records and rows, as text: nothing that a record names is imported.

    Raises:
        RunError: a folder has no record, or a damaged one.
    """
    first, second = read_record(one), read_record(other)
    rounds, same_rounds = _rounds(read_rows(one), read_rows(other))
    parts = (_parts(first), _parts(second))
    differing = {"config": [f"{name} {a} | {b}" for name, (a, b) in apart(first["config"], second["config"]).items()]}
    differing |= {name: _told(*(part[name] for part in parts)) for name in parts[0]}
    lines = [*(f"{name}: {'; '.join(told) or 'equal'}" for name, told in differing.items()), f"rounds: {rounds}"]
    same = same_rounds and _same_averaged(first, second) and not any(differing[name] for name in COUNTING)
    if {first["status"], second["status"]} != {"complete"}:
        return Comparison(lines, same)
    told, within = _readings(first, second, _row_of(one, first))
    return Comparison([*lines, *told], same, within if _same_row(first, second) else None)


def _parts(record: Record) -> dict[str, dict[str, Any]]:
    """What is compared of a record, by subject."""
    return {
        "partition": {"hash": record["partition_hash"]},
        "data": record["data_sha256"] or {},
        "status": {"status": record["status"]},
        "code": {"version": ", ".join(code_versions(record))},
        "environment": {name: value for name, value in record["environment"].items() if name not in SEVERAL},
    }


def _same_averaged(first: Record, second: Record) -> bool:
    """Whether the averaged models have equal metrics, of those that both runs have."""
    one, other = (record.get("averaged") or {} for record in (first, second))
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _readings(first: Record, second: Record, row: list[Record]) -> tuple[list[str], bool | None]:
    """How far the runs' readings are apart in accuracy, and whether the second's lie within the row's intervals."""
    told, inside = [], []
    shared = [reading for reading in READING.values() if first.get(reading) and second.get(reading)]
    for reading in shared:
        one, other = first[reading]["acc"], second[reading]["acc"]
        values = [record[reading]["acc"] for record in row if record.get(reading)]  # older ones lack `averaged`
        half = prediction(values, of=len(shared)) if len(values) >= LEAST else None
        where = ""
        if half is not None:
            mean = fmean(values)
            inside.append(abs(other - mean) <= half)
            where = f", {'within' if inside[-1] else 'outside'} {mean - half:.2f} to {mean + half:.2f}"
        told.append(f"{reading}: acc {one:.2f} | {other:.2f} ({other - one:+.2f}{where})")
    if inside:
        told.append(
            f"the intervals are prediction intervals of {len(row)} seeds of the first run's row, which jointly hold "
            f"with 95 % confidence (Bonferroni over {len(shared)} readings)"
        )
    return told, all(inside) if inside else None


def _row_of(path: Path, record: Record) -> list[Record]:
    """The complete runs beside a run that differ from it by their seed alone, and itself; one of each seed."""
    kind = path.resolve().name.rpartition("-")[0]
    beside = [one for one in sorted(path.resolve().parent.glob(f"{kind}-*")) if state(one) == "complete"]
    of_row = [found for found in map(read_record, beside) if _same_row(found, record)]
    by_seed = {found["config"]["seed"]: found for found in [*of_row, record]}  # a copy of a run is no further seed
    return list(by_seed.values())


def _same_row(one: Record, other: Record) -> bool:
    """Whether two runs differ by their seed alone; an option that one record is too old to have does not count."""
    return apart(one["config"], other["config"]).keys() <= {"seed"}


def _rounds(one: list[Row], other: list[Row]) -> tuple[str, bool]:
    """Where the rows part, and whether they are all equal; of the columns that both runs have."""
    rows = [{row["round"]: without_clock(row) for row in part} for part in (one, other)]
    common = sorted(set(rows[0]) & set(rows[1]))
    if not common:
        return "none in common", False
    columns = [dict.fromkeys(name for row in part.values() for name in row) for part in rows]
    shared = columns[0].keys() & columns[1].keys()
    for number in common:
        first, second = ({name: part[number][name] for name in part[number] if name in shared} for part in rows)
        if told := _told(first, second):
            return f"they part at round {number} (of {common[-1]}, from 0): {'; '.join(told)}", False
    equal, more = [f"equal in all {len(common)} that both have"], []
    for which, own, names in zip(("first", "second"), rows, columns, strict=True):
        if extra := len(own) - len(common):
            more.append(f"the {which} has {extra} more")
        if unknown := [name for name in names if name not in shared]:
            equal.append(f"only the {which} has the columns {', '.join(unknown)}")
    return "; ".join(equal + more), not more


def _told(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Entries that differ, as ``name one | other``; ``-`` where one has none."""
    names = dict.fromkeys([*one, *other])
    return [
        f"{name} {one.get(name, '-')} | {other.get(name, '-')}" for name in names if one.get(name) != other.get(name)
    ]
