"""Two runs side by side: where they differ in what was run, and the first round at which their results part."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.config import spelled
from benchmark.report.records import Record, Row, read_record, read_rows, without_clock


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Args:
        lines: for people, one per subject.
        equal: whether configuration, partition, data and all rounds are equal. Code and environment do not count: the
            point of a comparison may be that other code, or another machine, gives the same numbers.
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
    return ", ".join(record["environment"].get("code_versions", [record["code_version"]]))


def _environment(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record["environment"].items() if name != "code_versions"}


def _rounds(one: list[Row], other: list[Row]) -> tuple[str, bool]:
    """Where the rows part, and whether they are all equal."""
    rows = [{row["round"]: without_clock(row) for row in part} for part in (one, other)]
    common = sorted(set(rows[0]) & set(rows[1]))
    for number in common:
        if apart := _apart(rows[0][number], rows[1][number]):
            return f"they part at round {number} (of {common[-1]}, from 0): {'; '.join(apart)}", False
    if not common:
        return "none in common", False
    told = f"equal in all {len(common)} that both have"
    more = [
        f"the {which} has {len(own) - len(common)} more"
        for which, own in zip(("first", "second"), rows, strict=True)
        if len(own) > len(common)
    ]
    return "; ".join([told, *more]), not more


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Entries that differ, as ``name one | other``; ``-`` where one has none."""
    names = dict.fromkeys([*one, *other])
    return [
        f"{name} {one.get(name, '-')} | {other.get(name, '-')}" for name in names if one.get(name) != other.get(name)
    ]
