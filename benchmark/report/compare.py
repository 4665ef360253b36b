"""Two runs side by side: where they differ in what was run, and the first round at which their results part."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.config import spelled
from benchmark.runs.records import Record, Row, code_versions, read_record, read_rows, without_clock


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Args:
        lines: for people, one per subject.
        equal: whether configuration, partition, data and all rounds are equal. Code and environment do not count: the
            point of a comparison may be that other code, or another machine, gives the same numbers. Nor do columns
            that one run does not have in any round: other code may log more.
    """

    lines: tuple[str, ...]
    equal: bool


def compare(one: Path, other: Path) -> Comparison:
    """Compare two runs by their records and rows.

    Raises:
        RunError: a folder has no record, or a damaged one.
    """
    first, second = read_record(one), read_record(other)
    rounds, same_rounds = _rounds(read_rows(one), read_rows(other))
    counting = {
        "config": _apart(spelled(first["config"]), spelled(second["config"])),
        "partition": _apart(*({"hash": record["partition_hash"]} for record in (first, second))),
        "data": _apart(*(record["data_sha256"] or {} for record in (first, second))),
        "status": _apart(*({"status": record["status"]} for record in (first, second))),
    }
    telling = {
        "code": _apart(*({"version": code(record)} for record in (first, second))),
        "environment": _apart(*(_environment(record) for record in (first, second))),
    }
    lines = [f"{name}: {'; '.join(apart) or 'equal'}" for name, apart in (counting | telling).items()]
    return Comparison((*lines, f"rounds: {rounds}"), same_rounds and not any(counting.values()))


def code(record: Record) -> str:
    """All versions of the code that took part in a run."""
    return ", ".join(code_versions(record))


def _environment(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record["environment"].items() if name != "code_versions"}


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
        if apart := _apart(first, second):
            return f"they part at round {number} (of {common[-1]}, from 0): {'; '.join(apart)}", False
    told, more = [f"equal in all {len(common)} that both have"], []
    for which, own, names in zip(("first", "second"), rows, columns, strict=True):
        if extra := len(own) - len(common):
            more.append(f"the {which} has {extra} more")
        if unknown := [name for name in names if name not in shared]:
            told.append(f"only the {which} has the columns {', '.join(unknown)}")
    return "; ".join(told + more), not more


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Entries that differ, as ``name one | other``; ``-`` where one has none."""
    names = dict.fromkeys([*one, *other])
    return [
        f"{name} {one.get(name, '-')} | {other.get(name, '-')}" for name in names if one.get(name) != other.get(name)
    ]
