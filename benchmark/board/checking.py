"""Whether runs follow the rules, for those who make them and those who review them.

A record is text here: it is compared with the rows of suites. Only classes that the suites name are imported, and
nothing is run.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmark.board import tune
from benchmark.config import Run, Runtime, differences
from benchmark.federation.assembly import sees_hidden_labels
from benchmark.runs.records import Record, code_versions, read_record
from benchmark.suites.plan import Row
from benchmark.suites.suite import Place, Suite, places, places_of
from datamodules.common.errors import NOT_FINITE, BenchError, ConfigError

FILES = ("config.yaml", "metrics.jsonl", "record.json")
MOST_CONFIGURATIONS = 20  # maximum per row (RULES.md)
MOST_TOLD = 5  # differences of a configuration


def runs_below(folder: Path) -> list[Path]:
    """The folders of runs: this one, or all below it.

    Raises:
        ConfigError: there are none.
    """
    found = sorted({file.parent for name in FILES for file in folder.rglob(name)})
    if not found:
        raise ConfigError(f"{folder}: there is no run in this folder or below it")
    return found


class Checker:
    """Checks runs against the rows of suites.

    Args:
        suites: a run has to be one of theirs.
        data_dir: folder with the data sets, which partitions are drawn from.

    Attributes:
        seeds: seeds of the checked runs, by the name of their row.
    """

    def __init__(self, suites: Sequence[Suite], data_dir: str) -> None:
        self.seeds: dict[str, set[int]] = {}
        self._places = cache(partial(places, suites, runtime=Runtime(data_dir=data_dir)))
        self._partitions: dict[str, str] = {}
        self._of_row: dict[str, list[str]] = {}

    def problems(self, path: Path) -> list[str]:
        """What is wrong with a run, each with its remedy; empty if it follows the rules."""
        found = [f"it has no {name}; add it" for name in FILES[:-1] if not (path / name).is_file()]
        try:
            record = read_record(path)
        except BenchError as error:
            return [*found, str(error)]
        if record["status"] != "complete" and NOT_FINITE not in (record["error"] or ""):
            found.append(f"it is {record['status']}; the command that began it continues it")
        if unclean := [one for one in code_versions(record) if "-dirty" in one or "unknown" in one]:
            found.append(f"its code is {', '.join(unclean)}; commit the changes and run it again")
        known = self._places(record["scale"])
        own = places_of(record, known)
        if not own:
            return [*found, _no_row(record, known)]
        if path.resolve().name != own[0].run.folder.name:
            found.append(f"its folder should be named {own[0].run.folder.name}; another one is not found by the tables")
        meant = self._meant(own)
        for place in meant:
            self.seeds.setdefault(place.name, set()).add(place.run.config.seed)
        try:
            found += self._partition(own[0].run, record)
            for place in meant:
                if place.name not in self._of_row:
                    self._of_row[place.name] = [*self._hidden_labels(place), *self._tuning(place)]
                found += self._of_row[place.name]
        except BenchError as error:
            found.append(f"it cannot be made here: {error}")
        return found

    def _meant(self, own: list[Place]) -> list[Place]:
        """The rows that a record is handed in for: one that nobody has begun to tune is none if it has another row."""
        return [one for one in own if not _is_tuned(one) or one.row.full_name in one.suite.tuned.own(one.scale)] or own

    def _hidden_labels(self, place: Place) -> list[str]:
        """Refuse a method that sees labels which a ranked setting hides."""
        told = "its method sees labels of unlabelled images (`uses_oracle`); that is no record"
        return [told] if unfair(place.suite, place.row, place.run) else []

    def _partition(self, run: Run, record: Record) -> list[str]:
        """Compare the record's partition with the one that the suite's run draws."""
        data = run.config.data
        seed = run.config.seed if data.init_args.get("partition_seed") is None else None
        key = json.dumps([data.class_path, data.init_args, seed], sort_keys=True)
        if key not in self._partitions:
            drawn = run.make_data()
            drawn.setup()
            self._partitions[key] = drawn.partition.hash
        if record["partition_hash"] == self._partitions[key]:
            return []
        return [
            f"its partition is {str(record['partition_hash'])[:12]}, but the suite draws {self._partitions[key][:12]}; "
            "run it with the data and the code of this repository"
        ]

    def _tuning(self, place: Place) -> list[str]:
        """Compare the rates beside the suite with those that the rule chooses from what was tried."""
        if not _is_tuned(place):
            return []
        suite, scale, row = place.suite, place.scale, place.row
        if row.full_name in suite.choices(scale).keys() - suite.tuned.own(scale).keys():
            return []  # the choice of the suite that this one extends
        where = f"{suite.tuned.path(scale)}, {row.full_name}"
        given = suite.tuned.own(scale).get(row.full_name, {})
        made, missing, tried = tune.retraced(suite, scale, row)
        found = [f"{where}: no trial of the rule with {'; '.join(missing)}; tune it"] if missing else []
        for name, value in (made or {}).items():
            if given.get(name) != value:
                found.append(f"{where}: {name} is {given.get(name)}, but the trials give {value}; tune it again")
        if tried > MOST_CONFIGURATIONS:
            found.append(f"{where}: {tried} configurations were tried; the rules allow {MOST_CONFIGURATIONS}")
        return found


def unfair(suite: Suite, row: Row, run: Run) -> bool:
    """Whether the suite ranks a row whose run sees hidden labels; its data are set up.

    Raises:
        BenchError: see ``sees_hidden_labels``.
    """
    return suite.ranked and row.method not in suite.spec.tables[row.table].bounds and sees_hidden_labels(run)


def _is_tuned(place: Place) -> bool:
    """Whether the rules of today choose the row's rates."""
    return place.suite.scale(place.scale).tuning is not None and not place.suite.spec.tables[place.row.table].untuned


def _no_row(record: Record, known: Sequence[Place]) -> str:
    """Say how a record differs from the nearest run of its method."""
    config: Mapping[str, Any] = record["config"]
    name = config["method"]["class_path"]
    alike = [differences(config, one.run.config) for one in known if one.run.config.method.class_path == name]
    if not alike:
        return f"no suite has a row of {name} at scale {record['scale']}; name your own with --papers mine.yaml"
    apart = min(alike, key=len)
    told = "; ".join(apart[:MOST_TOLD]) or f"run id {record['run_id']}"
    return f"no row of a suite has its configuration; the nearest differs ({told}); run it as the suite has it"
