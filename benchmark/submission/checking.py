"""Checking a submission against the rules, point by point."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.board import tune
from benchmark.config import RunConfig, Runtime, identity, spelled
from benchmark.contract import checks
from benchmark.files import read_yaml
from benchmark.report.compare import code
from benchmark.runs.archive import FILES
from benchmark.runs.code_identity import method_files, method_source
from benchmark.runs.environment import hardware
from benchmark.runs.records import Record, code_versions, method_sources
from benchmark.runs.states import look
from benchmark.submission.folder import PASSED, SUITE, Submission, importable, is_public, keeps_contract, opened
from datamodules.common.errors import NOT_FINITE, BenchError

MOST_CONFIGURATIONS = 20  # maximum per row (RULES.md)


@dataclass(frozen=True)
class Point:
    """One requirement of a submission.

    Args:
        name: topic.
        found: summary of what was found, if there are no problems.
        problems: problems, each with its remedy.
    """

    name: str
    found: str
    problems: tuple[str, ...] = ()


def check(place: Path, results: Path, tell: Callable[[str], None] | None = None) -> list[Point]:
    """Check a submission against the rules, point by point.

    Args:
        place: its folder. The method's file in it is imported.
        results: folder with the records behind the leaderboard, to compare partitions with.
        tell: if given, the contract tests are run now, with progress messages to it; otherwise their results in the
            folder count.

    Raises:
        ConfigError: see ``opened``.
    """
    with importable(place):
        one = opened(place)
        now = keeps_contract(one.first.config.method.class_path, tell) if tell else None
        return [
            _row_alone(one),
            _complete(one),
            _as_the_suite_has_it(one),
            _partitions(one, results),
            _tuned(one),
            _code(one, results),
            _method(one),
            _contract(one, now),
        ]


def _row_alone(one: Submission) -> Point:
    """Check that the suite adds a row which only sets options of its method, and sees no labels that others do not."""
    spec, extended, problems = read_yaml(one.folder / SUITE), one.suite.extended, []
    assert extended is not None  # checked by `own_row`
    if extended.folder.resolve().is_relative_to(one.folder.resolve()):
        problems.append(f"it extends {extended.where}, which is in the folder itself; extend the board's own suite")
    tables = {str(name): dict(table or {}) for name, table in spec.get("tables", {}).items()}
    labels = spec.get("labels", {})
    rows = [row for table in tables.values() for row in table.get("rows", [])]
    own = [row for row in rows if row["method"] == one.row.method]
    options = {name: value for row in own for name, value in row.get("set", {}).items()}
    given = [
        *(name for name in spec if name not in ("extends", "paper", "labels", "tables")),
        *(f"labels.{label}" for label in labels if label != one.row.method),
        *(f"tables.{name}" for name in tables if name != one.row.table),
        *(f"tables.{one.row.table}.{name}" for name in tables.get(one.row.table, {}) if name != "rows"),
        *(f"a row of {row['method']}" for row in rows if row["method"] != one.row.method),
        *(f"the row's {name}" for name in one.row.columns),
        *(name for name in (labels.get(one.row.method) or {}) if name != "method" and not _methods_own(name)),
        *(name for name in options if not _methods_own(name)),
    ]
    problems += [
        f"it sets {name}, which belongs to the setting; remove it from {SUITE}" for name in dict.fromkeys(given)
    ]
    kept = one.first.config.data.init_args.get("validation")
    if kept and getattr(one.first.class_of("method"), "uses_validation", False):
        problems.append(
            f"the method has `uses_validation`, so that the server sees the labels of {kept} images that the setting "
            "keeps from everybody; leave it out, and run again"
        )
    told = ", ".join(f"{name} {value}" for name, value in options.items()) or "no options"
    return Point("row", f"{one.row.name} of {extended.paper} at scale {one.scale}, {told}", tuple(problems))


def _methods_own(option: str) -> bool:
    return option.startswith("method.")


def _complete(one: Submission) -> Point:
    """Check that all seeds of the scale have ended, and that there are no other runs."""
    problems = [f"runs/{name}: {error}" for name, error in one.damaged.items()]
    if missing := [seed for seed in one.runs if seed not in one.records]:
        problems.append(f"no run with seed {_listed(missing)}; the same `enter` command runs what is missing")
    for seed, record in one.records.items():
        lacking = [name for name in FILES if not (one.runs[seed].folder / name).exists()]
        problems += [f"seed {seed} has no {name}; pack the run's folder again" for name in lacking]
        if not (record["status"] == "complete" or NOT_FINITE in (record["error"] or "")):
            problems.append(f"seed {seed} is {record['status']}; the same `enter` command runs it again")
    failed = [seed for seed, record in one.records.items() if record["status"] != "complete"]
    more = f", {len(failed)} of them ended with non-finite numbers" if failed else ""
    return Point("complete", f"all {len(one.runs)} seeds{more}", tuple(problems))


def _as_the_suite_has_it(one: Submission) -> Point:
    """Check that records have the configurations given by the suite and the tuned options, one for each seed."""
    problems = []
    for name, record in one.others.items():
        config, seed = spelled(record["config"]), record["config"].get("seed")
        if seed not in one.runs:
            problems.append(f"runs/{name}: seed {seed} is not one of the suite's; remove the run")
            continue
        apart = _apart(config, one.runs[seed].config)
        problems += [f"runs/{name}, seed {seed}: {text}" for text in apart]
        if not apart:
            where = one.runs[seed].folder.name
            problems.append(f"runs/{name}: another run of seed {seed}, which belongs in runs/{where}; keep one of them")
    for seed, record in one.records.items():
        problems += [f"seed {seed}: {text}" for text in _apart(spelled(record["config"]), one.runs[seed].config)]
    return Point("configuration", "all records have the suite's configuration", tuple(problems))


def _apart(recorded: Mapping[str, Any], config: RunConfig) -> list[str]:
    """List differences between a record's configuration and the suite's; options newer than the record are ignored."""
    asked = spelled(identity(config))
    apart = [name for name in recorded if name in asked and recorded[name] != asked[name]]
    return [f"{name} is {recorded[name]}, but {asked[name]} in the suite; run it with that value" for name in apart]


def _beside_reference(one: Submission, results: Path) -> list[tuple[int, Record, Record | None]]:
    """Return seeds with their records, and those of the reference; ``None`` where it has no complete run."""
    if one.reference is None:
        return []
    runs = one.suite.runs(one.reference, one.scale, runtime=Runtime(results_dir=str(results)))
    return [(seed, one.records[seed], look(run.folder).record) for seed, run in runs.items() if seed in one.records]


def _partitions(one: Submission, results: Path) -> Point:
    """Check that every seed has the reference's partition, by its hash."""
    if one.reference is None:
        return Point(
            "partitions", "", (f"table {one.row.table} has no reference to compare with; enter another table",)
        )
    name, beside = one.reference.name, _beside_reference(one, results)
    problems = [
        f"seed {seed} has the partition {str(own['partition_hash'])[:12]}, but {name} {known['partition_hash'][:12]}; "
        "run it with the data and the code of this repository"
        for seed, own, known in beside
        if known and own["partition_hash"] not in (known["partition_hash"], None)
    ]
    if missing := [seed for seed, _, known in beside if known is None]:
        problems.append(
            f"{results}/runs has no {name} with seed {_listed(missing)} to compare with; `table --paper {SUITE} "
            f"--scale {one.scale} --only '{name}'` creates it"
        )
    other = [seed for seed, own, known in beside if known and own["data_sha256"] not in (known["data_sha256"], None)]
    more = f"; data files differ in seed {_listed(other)}, which is normal for features" if other else ""
    return Point("partitions", f"those of {one.reference.method}{more}", tuple(problems))


def _tuned(one: Submission) -> Point:
    """Check that the choice follows from the trials, and that no more was tried than allowed."""
    given, problems = dict(one.suite.tuned.own(one.scale).get(one.row.full_name, {})), []
    given.pop("trials", None)
    where = f"tuned/{one.suite.tuned.path(one.scale).name}"
    if extra := [name for name in one.suite.tuned.own(one.scale) if name != one.row.full_name]:
        problems.append(f"{where} also has {', '.join(extra)}; a submission is of one row")
    try:
        made, missing, tried = tune.retraced(one.suite, one.scale, one.row)
    except BenchError as error:
        return Point("tuning", "", (*problems, str(error)))
    if missing:
        problems.append(
            f"{where} has no trial of the rule with {'; '.join(missing)}: a different rate, seed, held-out part or "
            "number of rounds is a different trial; tune with `enter`"
        )
    elif given != made:
        problems += [f"{where}: {text}" for text in _choices_apart(given, made or {})]
    if tried > MOST_CONFIGURATIONS:
        problems.append(f"{tried} configurations were tried; the rules allow {MOST_CONFIGURATIONS}")
    chosen = ", ".join(f"{name} {value:g}" for name, value in (made or {}).get("options", {}).items())
    return Point("tuning", f"{chosen} of {tried} configurations, as chosen by the rule", tuple(problems))


def _choices_apart(given: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys([*made, *given])
    return [
        f"{name} is {given.get(name, 'missing')}, but the trials give {made.get(name, 'none')}; run `tune` again"
        for name in names
        if given.get(name) != made.get(name)
    ]


def _code(one: Submission, results: Path) -> Point:
    """Check that every seed has one clean version of the code and one kind of machine; seeds may differ.

    Older rows keep the versions they were run with: if the reference has another one, this is reported.
    """
    records = one.all_records
    problems = [
        f"{_listed(where)}: the code is {version}; commit the changes and run it again"
        for version, where in _by(records, code).items()
        if "-dirty" in version or "unknown" in version
    ]
    for seed, names in _by(records, lambda record: record["config"]["seed"]).items():
        several = dict.fromkeys(version for name in names for version in code_versions(records[name]))
        kinds = dict.fromkeys(_machine(records[name]) for name in names)
        for what, found in (("versions of the code", several), ("kinds of machines", kinds)):
            if len(found) > 1:
                problems.append(f"seed {seed} has several {what}: {_listed(found)}; delete it and run it with one")
    if not records:
        problems.append("no record has a code version")
    told = [_in_seeds(one, code), _in_seeds(one, _machine)]
    beside = [(seed, own, known) for seed, own, known in _beside_reference(one, results) if known]
    other = [seed for seed, own, known in beside if (code(own), _machine(own)) != (code(known), _machine(known))]
    if one.reference and other:
        told.append(f"{one.reference.method} has other code or another machine in seed {_listed(other)}")
    return Point("code", "; ".join(told), tuple(problems))


def _machine(record: Record) -> str:
    return hardware(record["environment"])


def _in_seeds(one: Submission, what: Callable[[Record], str]) -> str:
    """Summarise a property of the row's records: one value, or each value with its seeds."""
    found = _by({str(seed): record for seed, record in sorted(one.records.items())}, what)
    if len(found) < 2:
        return _listed(found)
    return ", ".join(f"{thing} (seed {_listed(seeds)})" for thing, seeds in found.items())


def _method(one: Submission) -> Point:
    """Check that all records were made with the submitted source of the method."""
    problems, run = [], one.first
    files = method_files(run)
    file = files[run.class_of("method").__module__]
    here = one.folder.resolve()
    for outside in (path for path in files.values() if not (path.is_relative_to(here) or is_public(path))):
        problems.append(
            f"{run.config.method.class_path} is made of {outside}, which is neither in the folder nor in an installed "
            "package; put it into the folder"
        )
    now = method_source(run)
    for sources, where in _by(one.all_records, lambda record: " and ".join(method_sources(record))).items():
        if not sources:
            problems.append(f"{_listed(where)}: the record has no digest of the method's source")
        elif sources != now:
            problems.append(
                f"{_listed(where)}: made with source {sources}, but {file.name} is {now}; run with the submitted source"
            )
    return Point("method", f"{file.name} is {now} in all records", tuple(problems))


def _contract(one: Submission, now: Mapping[str, str] | None) -> Point:
    """Check that all existing contract tests have passed with the submitted source."""
    recorded = _mapping(one.about.get("contract"))
    outcomes = now if now is not None else _mapping(recorded.get("checks"))
    source, problems = method_source(one.first), []
    if now is None and recorded.get("method_source") != source:
        problems.append(
            f"it was run with source {recorded.get('method_source')}, but the method is {source}; --contract "
            "runs it again"
        )
    names = [checks.title(check) for check in checks.CHECKS]
    if missing := [name for name in names if name not in outcomes]:
        problems.append(f"not run: {', '.join(missing)}; --contract runs it")
    problems += [f"{name}: {outcomes[name]}" for name in names if outcomes.get(name, PASSED) != PASSED]
    return Point("contract", f"{len(names)} checks passed{'' if now is None else ', run now'}", tuple(problems))


def _mapping(value: Any) -> Mapping[str, Any]:
    """A part of a file that others have written; empty if it is no mapping."""
    return value if isinstance(value, Mapping) else {}


def _by(records: Mapping[str, Record], what: Callable[[Record], Any]) -> dict[Any, list[str]]:
    """Group names of records by a property."""
    found: dict[Any, list[str]] = {}
    for name, record in records.items():
        found.setdefault(what(record), []).append(name)
    return found


def _listed(things: Iterable[Any]) -> str:
    return ", ".join(map(str, things))
