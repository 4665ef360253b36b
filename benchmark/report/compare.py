"""Two runs side by side: where they differ in what was run, and the first round at which their results part."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmark.config import apart
from benchmark.report.statistics import LEAST, prediction
from benchmark.runs.records import READING, SEVERAL, Record, Row, code_versions, read_record, read_rows, without_clock
from benchmark.runs.states import look

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
            the intervals jointly hold with 95 % confidence. ``None`` where a run is not complete, fewer than three
            seeds of that row are at hand, or the two runs are of different rows.
    """

    lines: list[str]
    equal: bool
    within: bool | None = None


def compare(folder: Path, other_folder: Path) -> Comparison:
    """Compare two runs by their records and rows, as text: nothing that a record names is imported.

    Raises:
        RunError: a folder has no record, or a damaged one.
    """
    first, second = read_record(folder), read_record(other_folder)
    rounds, same_rounds = _compare_rounds(read_rows(folder), read_rows(other_folder))
    subjects, of_second = _subjects(first), _subjects(second)
    differing = {"config": [f"{name} {a} | {b}" for name, (a, b) in apart(first["config"], second["config"]).items()]}
    differing |= {subject: _differing(entries, of_second[subject]) for subject, entries in subjects.items()}
    lines = [f"{subject}: {'; '.join(entries) or 'equal'}" for subject, entries in differing.items()]
    lines.append(f"rounds: {rounds}")
    equal = same_rounds and _same_averaged(first, second) and not any(differing[subject] for subject in COUNTING)
    if {first["status"], second["status"]} != {"complete"}:
        return Comparison(lines, equal)
    readings, within = _compare_readings(first, second, _row_of(folder, first, second))
    return Comparison(lines + readings, equal, within if _same_row(first, second) else None)


def _subjects(record: Record) -> dict[str, dict[str, Any]]:
    """What is compared of a record besides its configuration, by subject."""
    return {
        "partition": {"hash": record["partition_hash"]},
        "data": record["data_sha256"] or {},
        "status": {"status": record["status"]},
        "code": {"version": ", ".join(code_versions(record))},
        "environment": {name: value for name, value in record["environment"].items() if name not in SEVERAL},
    }


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Entries that differ, as ``name first | second``; ``-`` where one has none."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return [f"{name} {first.get(name, '-')} | {second.get(name, '-')}" for name in names]


def _compare_rounds(first: list[Row], second: list[Row]) -> tuple[str, bool]:
    """Where the rows part, and whether they are all equal; of the columns that both runs have."""
    runs = [{row["round"]: without_clock(row) for row in rows} for rows in (first, second)]
    common = sorted(runs[0].keys() & runs[1].keys())
    if not common:
        return "none in common", False
    columns = [dict.fromkeys(name for row in rows.values() for name in row) for rows in runs]
    shared = columns[0].keys() & columns[1].keys()
    for number in common:
        both = [{name: value for name, value in rows[number].items() if name in shared} for rows in runs]
        if differing := _differing(*both):
            return f"they part at round {number} (of {common[-1]}, from 0): {'; '.join(differing)}", False
    notes, longer = [f"equal in all {len(common)} that both have"], []
    for which, rows, names in zip(("first", "second"), runs, columns, strict=True):
        if extra := len(rows) - len(common):
            longer.append(f"the {which} has {extra} more")
        if unshared := [name for name in names if name not in shared]:
            notes.append(f"only the {which} has the columns {', '.join(unshared)}")
    return "; ".join(notes + longer), not longer


def _same_averaged(first: Record, second: Record) -> bool:
    """Whether the averaged models have equal metrics, of those that both runs have."""
    averaged, of_second = first.get("averaged") or {}, second.get("averaged") or {}
    return all(averaged[name] == of_second[name] for name in averaged.keys() & of_second.keys())


def _compare_readings(first: Record, second: Record, row: list[Record]) -> tuple[list[str], bool | None]:
    """How far the runs' readings are apart in accuracy, and whether the second's lie within the row's intervals."""
    lines, inside = [], []
    shared = [reading for reading in READING.values() if first.get(reading) and second.get(reading)]
    for reading in shared:
        acc, second_acc = first[reading]["acc"], second[reading]["acc"]
        values = [record[reading]["acc"] for record in row if record.get(reading)]  # older ones lack `averaged`
        half = prediction(values, of=len(shared)) if len(values) >= LEAST else None
        where = ""
        if half is not None:
            mean = fmean(values)
            inside.append(abs(second_acc - mean) <= half)
            where = f", {'within' if inside[-1] else 'outside'} {mean - half:.2f} to {mean + half:.2f}"
        lines.append(f"{reading}: acc {acc:.2f} | {second_acc:.2f} ({second_acc - acc:+.2f}{where})")
    if inside:
        lines.append(
            f"the intervals are prediction intervals of {len(row)} seeds of the first run's row, which jointly hold "
            f"with 95 % confidence (Bonferroni over {len(shared)} readings)"
        )
    return lines, all(inside) if inside else None


def _row_of(folder: Path, record: Record, other: Record) -> list[Record]:
    """The complete runs beside a run that differ from it by their seed alone, and itself; one of each seed.

    The ``other`` run's seed is left out, unless it is this run's: what is judged makes no interval.
    """
    folder = folder.resolve()
    kind = folder.name.rpartition("-")[0]
    complete = [look(path).record for path in sorted(folder.parent.glob(f"{kind}-*"))]
    row = [neighbour for neighbour in complete if neighbour and _same_row(neighbour, record)]
    beside = [neighbour for neighbour in row if neighbour["config"]["seed"] != other["config"]["seed"]]
    by_seed = {run["config"]["seed"]: run for run in [*beside, record]}  # a copy of a run is no further seed
    return list(by_seed.values())


def _same_row(first: Record, second: Record) -> bool:
    """Whether two runs differ by their seed alone; an option that one record is too old to have does not count."""
    return apart(first["config"], second["config"]).keys() <= {"seed"}
