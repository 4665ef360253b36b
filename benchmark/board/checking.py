"""Whether runs follow the rules, for those who make them and those who review them.

A record is text here: it is compared with the rows of suites. Only classes that the suites name are imported, and
nothing is run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmark.board import tune
from benchmark.config import Run, Runtime, differences
from benchmark.federation.assembly import sees_hidden_labels
from benchmark.runs.code_identity import by_other_code, revision
from benchmark.runs.records import Record, code_versions, read_record
from benchmark.runs.states import Digests, other_data
from benchmark.suites.plan import Row
from benchmark.suites.suite import Place, Suite, places, places_of
from datamodules.common.errors import NOT_FINITE, BenchError, ConfigError
from datamodules.common.yaml import read_yaml

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
    """

    def __init__(self, suites: Sequence[Suite], data_dir: str) -> None:
        self._places = cache(partial(places, suites, runtime=Runtime(data_dir=data_dir)))
        self._partitions: dict[str, str] = {}
        self._digests: Digests = {}
        self._of_row: dict[str, list[str]] = {}
        self._checked: dict[str, list[tuple[Place, Record]]] = {}

    def problems(self, path: Path) -> list[str]:
        """What is wrong with a run, each with its remedy; empty if it follows the rules."""
        try:
            record, config = read_record(path), read_yaml(path / "config.yaml")
        except BenchError as error:
            return [str(error)]
        found = []
        if config != record["config"]:
            found.append("its config.yaml differs from record.json; restore it as the run wrote it")
        if record["status"] != "complete" and NOT_FINITE not in (record["error"] or ""):
            found.append(f"it is {record['status']}; the command that began it continues it")
        if changed := _unclean([record["code_version"], *code_versions(record)]):
            found.append(f"its code is {changed}; commit the changes and run it again")
        known = self._places(record["scale"])
        of_record = places_of(record, known)
        if not of_record:
            return [*found, _no_row(record, known)]
        run = of_record[0].run
        if path.resolve().name != run.folder.name:
            found.append(f"its folder should be named {run.folder.name}; another one is not found by the tables")
        if by_other_code(run, record, source=False):
            found.append(f"it is of another revision than {revision(run)}; run it again")
        entered = [place for place in of_record if _is_entered(place)] or of_record
        for place in entered:
            self._checked.setdefault(place.name, []).append((place, record))
        try:
            found += self._data(run, record)
            for place in entered:
                if place.name not in self._of_row:
                    self._of_row[place.name] = [*_hidden_labels(place), *_tuning(place)]
                found += self._of_row[place.name]
        except BenchError as error:
            found.append(f"it cannot be made here: {error}")
        return found

    def rows(self) -> tuple[list[str], list[str]]:
        """A line on each row of the checked runs, and on each one of a ranked suite that lacks seeds."""
        lines, lacking = [], []
        for name, checked in sorted(self._checked.items()):
            suite, scale = checked[0][0].suite, checked[0][0].scale
            fixed, seeds = suite.scale(scale).seeds, {place.run.config.seed for place, _ in checked}
            counted = f"{name}: {len(seeds)} of {len(fixed)} seeds"
            code = sorted({version for _, record in checked for version in code_versions(record)})
            lines.append(f"{counted}, code {', '.join(code)}")
            if suite.ranked and len(seeds) < len(fixed):
                lacking.append(f"{counted}; a ranked setting needs them all")
        return lines, lacking

    def _data(self, run: Run, record: Record) -> list[str]:
        """Compare the record's data with those here, and its partition with the one that the suite's run draws."""
        data = run.config.data
        seed = run.config.seed if data.init_args.get("partition_seed") is None else None
        key = json.dumps([data.class_path, data.init_args, seed], sort_keys=True)
        if key not in self._partitions:
            drawn = run.make_data()
            drawn.setup()
            self._partitions[key] = drawn.partition.hash
        if file := other_data(run, record, self._digests):
            return [f"its {file} differs from the one here; run it with the data of the suite"]
        recorded, due = str(record["partition_hash"]), self._partitions[key]
        if recorded == due:
            return []
        return [f"its partition is {recorded[:12]}, but the suite draws {due[:12]}; run it with this data and code"]


def unfair(suite: Suite, row: Row, run: Run) -> bool:
    """Whether the suite ranks a row whose run sees hidden labels; its data are set up.

    Raises:
        BenchError: see ``sees_hidden_labels``.
    """
    return suite.ranked and row.method not in suite.spec.tables[row.table].bounds and sees_hidden_labels(run)


def _is_entered(place: Place) -> bool:
    """Whether a record that has other rows, too, is handed in for this one.

    It is not if nobody has tuned the row, unless its suite, in which others are tuned, has it untuned beside it.
    """
    chosen = place.suite.tuned.own(place.scale)
    beside = any(table.untuned == place.row.table for table in place.suite.tables)
    return not _is_tuned(place) or place.row.full_name in chosen or (beside and bool(chosen))


def _hidden_labels(place: Place) -> list[str]:
    """Refuse a method that sees labels which a ranked setting hides."""
    problem = "its method sees labels of unlabelled images (`uses_oracle`); it cannot be ranked"
    return [problem] if unfair(place.suite, place.row, place.run) else []


def _tuning(place: Place) -> list[str]:
    """Compare the rates beside the suite with those that the rule chooses from what was tried."""
    if not _is_tuned(place):
        return []
    suite, scale, row = place.suite, place.scale, place.row
    if row.full_name in suite.choices(scale).keys() - suite.tuned.own(scale).keys():
        return []  # the choice of the suite that this one extends
    where = f"{suite.tuned.path(scale)}, {row.full_name}"
    entry = suite.tuned.own(scale).get(row.full_name, {})
    chosen, missing, tried = tune.retraced(suite, scale, row)
    found = [f"{where}: no trial of the rule with {'; '.join(missing)}; tune it"] if missing else []
    for name, value in (chosen or {}).items():
        if entry.get(name) != value:
            found.append(f"{where}: {name} is {entry.get(name)}, but the trials give {value}; tune it again")
    if changed := _unclean(version for trial in entry.get("trials", {}).values() for version in trial.get("code", ())):
        found.append(f"{where}: trials of {changed}; commit the changes and tune it again")
    if tried > MOST_CONFIGURATIONS:
        found.append(f"{where}: {tried} configurations were tried; the rules allow {MOST_CONFIGURATIONS}")
    return found


def _unclean(versions: Iterable[str]) -> str:
    """Those of the code versions that no commit is; empty if there are none."""
    return ", ".join(sorted({version for version in versions if "-dirty" in version or "unknown" in version}))


def _is_tuned(place: Place) -> bool:
    """Whether the rules of today choose the row's rates."""
    return place.suite.scale(place.scale).tuning is not None and not place.suite.spec.tables[place.row.table].untuned


def _no_row(record: Record, known: Sequence[Place]) -> str:
    """Say how a record differs from the nearest run of its method."""
    recorded: Mapping[str, Any] = record["config"]
    method = recorded["method"]["class_path"]
    of_method = [place.run.config for place in known if place.run.config.method.class_path == method]
    if not of_method:
        return f"no suite has a row of {method} at scale {record['scale']}; name your own with --papers mine.yaml"
    nearest = min((differences(recorded, config) for config in of_method), key=len)
    text = "; ".join(nearest[:MOST_TOLD]) or f"run id {record['run_id']}"
    return f"no row of a suite has its configuration; the nearest differs ({text}); run it as the suite has it"
