"""Submissions: a folder with a leaderboard row, and the evidence that it follows the rules.

::

    suite.yaml          the leaderboard's suite, extended by the method's label and row
    submission.yaml     scale, and the results of the contract tests
    my_method.py        the method's source, unless it is part of this repository
    tuned/  tuning/     the chosen options, and Optuna's journal of all trials
    runs/               record.json, metrics.jsonl and config.yaml of every seed
"""

import inspect
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark import ROOT, tuning
from benchmark.config import Run, RunConfig, Runtime, identity, spelled
from benchmark.contract import checks
from benchmark.files import dump_yaml, read_yaml, write_atomic
from benchmark.registry import KINDS, imported, one_line
from benchmark.report.compare import compare
from benchmark.run import fit
from benchmark.runs.archive import FILES
from benchmark.runs.code_identity import method_source
from benchmark.runs.environment import hardware
from benchmark.runs.records import READING, Record, code_versions, read_record
from benchmark.runs.states import state
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite, load
from datamodules.common.errors import NOT_FINITE, BenchError, ConfigError, RunError, message_of

SUITE, ABOUT = "suite.yaml", "submission.yaml"
VERIFICATION = "verification"
MOST_CONFIGURATIONS = 20  # maximum per row (RULES.md)
SAME_MACHINE = ("cpu", "gpu", "threads", "devices", "torch")  # entries of the environment that affect rounding
PASSED = "passed"

Runs = dict[int, Run]
"""The runs of a row, by seed."""


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


@dataclass(frozen=True)
class Submission:
    """A submission read from its folder.

    Args:
        folder: its folder.
        suite: the leaderboard's suite, extended by the row.
        scale: scale of the leaderboard.
        row: the row.
        about: content of ``submission.yaml``.
        runs: the row's runs according to the suite, in the folder, by seed.
        records: records of these runs, by seed.
        damaged: problems of unreadable records, by folder name.
        others: records of other runs in the folder, by folder name.
    """

    folder: Path
    suite: Suite
    scale: str
    row: Row
    about: Mapping[str, Any]
    runs: Runs
    records: Mapping[int, Record]
    damaged: Mapping[str, str]
    others: Mapping[str, Record]

    @property
    def all_records(self) -> dict[str, Record]:
        """All records in the folder, by a description of the run."""
        return {f"seed {seed}": one for seed, one in sorted(self.records.items())} | dict(self.others)


def own_row(suite: Suite) -> Row:
    """Return the row that a suite adds to a leaderboard.

    Raises:
        ConfigError: it does not extend a leaderboard by exactly one row.
    """
    known = suite.extended.spec["labels"] if suite.extended else suite.spec["labels"]
    rows = [row for row in suite.rows if row.method not in known]
    if len(rows) != 1:
        raise ConfigError(
            f"{suite.where}: a submission extends a leaderboard by one row, but this has {len(rows)}; "
            "`enter` writes such a suite"
        )
    return rows[0]


def runs_of(suite: Suite, row: Row, scale: str, results: str | Path) -> Runs:
    """Return a row's runs with the seeds of the scale."""
    first, runtime = suite.run(row, scale), Runtime(results_dir=str(results))
    return {seed: first.replace(seed=seed, runtime=runtime) for seed in suite.scale(scale)["seeds"]}


def pack(suite: Suite, scale: str, results: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Create the folder of a submission from the files of ``enter``. Missing runs are left out.

    Args:
        suite: suite written by ``enter``.
        scale: scale of the leaderboard.
        results: folder that holds ``runs`` and ``tuning``.
        out: the folder to create.
        tell: called with progress messages of the contract tests.

    Raises:
        ConfigError: see ``own_row``; or ``out`` exists, or the row was not tuned.
    """
    row = own_row(suite)
    if out.exists():
        raise ConfigError(f"{out} exists already; delete it, or name another folder with --out")
    tuned, journal = suite.tuned.path(scale), results / tuning.FOLDER / f"{suite.paper}-{scale}.journal"
    for file in (tuned, journal):
        if not file.exists():
            raise ConfigError(f"{file}: there is no such file; `enter` tunes the row and creates it")
    runs = list(runs_of(suite, row, scale, results).values())
    checked = {
        "method_source": method_source(runs[0]),
        "checks": keeps_contract(runs[0].config.method.class_path, tell),
    }
    spec = read_yaml(suite.folder / Path(suite.where).name)
    if str(spec["extends"]).endswith(".yaml"):
        spec["extends"] = os.path.relpath(suite.folder / spec["extends"], out)
    files = {f"{tuned.parent.name}/{tuned.name}": tuned, f"{tuning.FOLDER}/{journal.name}": journal}
    files |= {f"runs/{run.folder.name}/{name}": run.folder / name for run in runs for name in FILES}
    for name, file in (files | _sources(runs[0])).items():
        if file.exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, out / name)
    write_atomic(out / SUITE, dump_yaml(spec))
    write_atomic(out / ABOUT, dump_yaml({"scale": scale, "contract": checked}))


def keeps_contract(method: str, tell: Callable[[str], None]) -> dict[str, str]:
    """Run the contract tests; return ``passed`` or a one-line error for each. ``tell`` gets progress messages."""
    found = {}
    tell(checks.announced([method]))
    for number, check in enumerate(checks.CHECKS, start=1):
        name = checks.title(check)
        tell(f"[{number:>2}/{len(checks.CHECKS)}] {name}")
        try:
            check(method)
        except Exception as error:  # from external code
            found[name] = one_line(message_of(error))
        else:
            found[name] = PASSED
    return found


@contextmanager
def importable(place: Path) -> Iterator[None]:
    """Import modules from a folder while the context is open, even if others of their names are imported already."""
    tops = {one.stem for one in place.glob("*.py")} | {one.parent.name for one in place.glob("*/__init__.py")}

    def loaded() -> dict[str, Any]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}

    kept = loaded()
    for name in kept:
        del sys.modules[name]
    sys.path.insert(0, str(place.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(place.resolve()))
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(kept)


def opened(place: Path) -> Submission:
    """Read a submission; its method must be ``importable``.

    Raises:
        ConfigError: there is no such folder, or its suite cannot be read.
    """
    if not (place / SUITE).exists():
        raise ConfigError(f"{place}: there is no {SUITE}; `submit --paper SUITE` creates the folder of a submission")
    about, suite = read_yaml(place / ABOUT), load(str(place / SUITE))
    scale, row = str(about.get("scale")), own_row(suite)
    runs = runs_of(suite, row, scale, place)
    seeds = {run.folder.name: seed for seed, run in runs.items()}
    records: dict[int, Record] = {}
    damaged, others = {}, {}
    for path in sorted((place / "runs").glob("*")):
        try:
            record = read_record(path)
        except RunError as error:
            damaged[path.name] = str(error)
            continue
        if path.name in seeds:
            records[seeds[path.name]] = record
        else:
            others[path.name] = record
    return Submission(place, suite, scale, row, about, runs, records, damaged, others)


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
        method = next(iter(one.runs.values())).config.method.class_path
        return [
            _row_alone(one),
            _complete(one),
            _as_the_suite_has_it(one),
            _partitions(one, results),
            _tuned(one),
            _code(one, results),
            _method(one),
            _contract(one, keeps_contract(method, tell) if tell else None),
        ]


def _row_alone(one: Submission) -> Point:
    """Check that the suite adds a row which only sets options of its method."""
    spec, extended, problems = read_yaml(one.folder / SUITE), one.suite.extended, []
    assert extended is not None  # checked by `own_row`
    if extended.folder.resolve().is_relative_to(one.folder.resolve()):
        problems.append(f"it extends {extended.where}, which is in the folder itself; extend the board's own suite")
    tables = {str(name): dict(table or {}) for name, table in spec.get("tables", {}).items()}
    labels = spec.get("labels", {})
    own = [row for table in tables.values() for row in table.get("rows", []) if row["method"] == one.row.method]
    options = {name: value for row in own for name, value in row.get("set", {}).items()}
    given = {
        **{name: value for name, value in spec.items() if name not in ("extends", "paper", "labels", "tables")},
        **{f"labels.{label}": layer for label, layer in labels.items() if label != one.row.method},
        **{f"tables.{name}": table for name, table in tables.items() if name != one.row.table},
        **{f"tables.{one.row.table}.{name}": 0 for name in tables.get(one.row.table, {}) if name != "rows"},
        **{f"the row's {name}": 0 for name in one.row.columns},
        **{name: 0 for name in (labels.get(one.row.method) or {}) if name != "method" and not _methods_own(name)},
        **{name: 0 for name in options if not _methods_own(name)},
    }
    problems += [f"it sets {name}, which belongs to the setting; remove it from {SUITE}" for name in given]
    table = next(table for table in one.suite.tables if table.number == one.row.table)
    if not table.reference:
        problems.append(f"table {one.row.table} has no reference to compare with; enter another table")
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
        if not (record["status"] == "complete" or NOT_FINITE in (record["error"] or "")):
            problems.append(f"seed {seed} is {record['status']}; the same `enter` command runs it again")
    failed = [seed for seed, record in one.records.items() if record["status"] != "complete"]
    more = f", {len(failed)} of them ended with non-finite numbers" if failed else ""
    return Point("complete", f"all {len(one.runs)} seeds{more}", tuple(problems))


def _as_the_suite_has_it(one: Submission) -> Point:
    """Check that records have the configurations given by the suite and the tuned options."""
    problems = []
    for name, record in one.others.items():
        config, seed = spelled(record["config"]), record["config"].get("seed")
        if seed not in one.runs:
            problems.append(f"runs/{name}: seed {seed} is not one of the suite's; remove the run")
            continue
        problems += [f"runs/{name}, seed {seed}: {text}" for text in _apart(config, one.runs[seed].config)]
    for seed, record in one.records.items():
        problems += [f"seed {seed}: {text}" for text in _apart(spelled(record["config"]), one.runs[seed].config)]
    return Point("configuration", "all records have the suite's configuration", tuple(problems))


def _apart(recorded: Mapping[str, Any], config: RunConfig) -> list[str]:
    """List differences between a record's configuration and the suite's; options newer than the record are ignored."""
    asked = spelled(identity(config))
    apart = [name for name in recorded if name in asked and recorded[name] != asked[name]]
    return [f"{name} is {recorded[name]}, but {asked[name]} in the suite; run it with that value" for name in apart]


def _reference(one: Submission) -> Row | None:
    """Return the setting's reference row, if it has one."""
    table = next(table for table in one.suite.tables if table.number == one.row.table)
    rows = [row for row in table.rows if (row.dataset, row.method) == (one.row.dataset, table.reference)]
    return rows[0] if rows else None


def _partitions(one: Submission, results: Path) -> Point:
    """Check that every seed has the reference's partition, by its hash."""
    row = _reference(one)
    if row is None:
        return Point("partitions", "", ("the table has no reference to compare with",))
    problems, missing, other_data = [], [], []
    for seed, run in runs_of(one.suite, row, one.scale, results).items():
        if seed not in one.records:
            continue
        if state(run.folder) != "complete":
            missing.append(seed)
            continue
        known, record = read_record(run.folder), one.records[seed]
        if record["partition_hash"] not in (known["partition_hash"], None):
            problems.append(
                f"seed {seed} has the partition {str(record['partition_hash'])[:12]}, but {row.name} "
                f"{known['partition_hash'][:12]}; run it with the data and the code of this repository"
            )
        if record["data_sha256"] not in (known["data_sha256"], None):
            other_data.append(seed)
    if missing:
        problems.append(
            f"{results}/runs has no {row.name} with seed {_listed(missing)} to compare with; `table --paper {SUITE} "
            f"--scale {one.scale} --only '{row.name}'` creates it"
        )
    more = f"; data files differ in seed {_listed(other_data)}, which is normal for features" if other_data else ""
    return Point("partitions", f"those of {row.method}{more}", tuple(problems))


def _tuned(one: Submission) -> Point:
    """Check that the choice follows from the journal, and that no more was tried than allowed."""
    journal = one.folder / tuning.FOLDER / f"{one.suite.paper}-{one.scale}.journal"
    given, problems = one.suite.tuned.own(one.scale).get(one.row.full_name), []
    where = f"tuned/{one.suite.tuned.path(one.scale).name}"
    if extra := [name for name in one.suite.tuned.own(one.scale) if name != one.row.full_name]:
        problems.append(f"{where} also has {', '.join(extra)}; a submission is of one row")
    try:
        made, missing, tried = tuning.retraced(one.suite, one.scale, one.row, journal)
    except BenchError as error:
        return Point("tuning", "", (*problems, str(error)))
    if missing:
        problems.append(
            f"the journal has no trial of the rule with {'; '.join(missing)}: a different rate, seed, held-out part or "
            "number of rounds is a different trial; tune with `enter`"
        )
    elif given != made:
        problems += [f"{where}: {text}" for text in _choices_apart(given or {}, made or {})]
    if tried > MOST_CONFIGURATIONS:
        problems.append(f"{tried} configurations were tried; the rules allow {MOST_CONFIGURATIONS}")
    chosen = ", ".join(f"{name} {value:g}" for name, value in (made or {}).get("options", {}).items())
    return Point("tuning", f"{chosen} of {tried} configurations, as chosen by the rule", tuple(problems))


def _choices_apart(given: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys([*made, *given])
    return [
        f"{name} is {given.get(name, 'missing')}, but the journal gives {made.get(name, 'none')}; run `tune` again"
        for name in names
        if given.get(name) != made.get(name)
    ]


def _code(one: Submission, results: Path) -> Point:
    """Check that every seed has one clean version of the code and one kind of machine; seeds may differ.

    Older rows keep the versions they were run with: if the reference has another one, this is reported.
    """
    problems = []
    for version, where in _by(one.all_records, _version).items():
        if "-dirty" in version or "unknown" in version:
            problems.append(f"{_listed(where)}: the code is {version}; commit the changes and run it again")
    by_seed: dict[int, list[Record]] = {}
    for record in one.all_records.values():
        by_seed.setdefault(record["config"]["seed"], []).append(record)
    for seed, records in by_seed.items():
        several = dict.fromkeys(version for record in records for version in code_versions(record))
        kinds = dict.fromkeys(map(_machine, records))
        for what, found in (("versions of the code", several), ("kinds of machines", kinds)):
            if len(found) > 1:
                problems.append(f"seed {seed} has several {what}: {_listed(found)}; delete it and run it with one")
    if not by_seed:
        problems.append("no record has a code version")
    found_in = f"{_in_seeds(one, _version)}; {_in_seeds(one, _machine)}"
    return Point("code", found_in + _of_reference(one, results), tuple(problems))


def _version(record: Record) -> str:
    return ", ".join(code_versions(record))


def _machine(record: Record) -> str:
    return hardware(record["environment"])


def _in_seeds(one: Submission, what: Callable[[Record], str]) -> str:
    """Summarise a property of the row's records: one value, or each value with its seeds."""
    found = _by({str(seed): record for seed, record in sorted(one.records.items())}, what)
    if len(found) < 2:
        return _listed(found)
    return ", ".join(f"{thing} (seed {_listed(seeds)})" for thing, seeds in found.items())


def _of_reference(one: Submission, results: Path) -> str:
    """Note the seeds in which the reference was run with other code or on another machine."""
    row, other = _reference(one), []
    if row is None:
        return ""
    for seed, run in runs_of(one.suite, row, one.scale, results).items():
        if seed in one.records and state(run.folder) == "complete":
            known, record = read_record(run.folder), one.records[seed]
            if (_version(known), _machine(known)) != (_version(record), _machine(record)):
                other.append(seed)
    return f"; {row.method} has other code or another machine in seed {_listed(other)}" if other else ""


def _method(one: Submission) -> Point:
    """Check that all records were made with the submitted source of the method."""
    problems, run = [], next(iter(one.runs.values()))
    found = run.class_of("method")
    file = Path(inspect.getfile(found)).resolve()
    if not (file.is_relative_to(one.folder.resolve()) or _is_public(file)):
        problems.append(
            f"{run.config.method.class_path} is at {file}, which is neither in the folder nor an installed package; "
            "put its source into the folder"
        )
    now = method_source(run)
    for source, where in _by(one.all_records, lambda record: record["environment"].get("method_source")).items():
        if source is None:
            problems.append(f"{_listed(where)}: the record has no digest of the method's source")
        elif source != now:
            problems.append(
                f"{_listed(where)}: made with source {source}, but {file.name} is {now}; run with the submitted source"
            )
    return Point("method", f"{file.name} is {now} in all records", tuple(problems))


def _contract(one: Submission, now: Mapping[str, str] | None) -> Point:
    """Check that all existing contract tests have passed with the submitted source."""
    recorded = one.about.get("contract") or {}
    outcomes = now if now is not None else recorded.get("checks") or {}
    source, problems = method_source(next(iter(one.runs.values()))), []
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


@dataclass(frozen=True)
class Verified:
    """Result of rerunning a seed.

    Args:
        lines: differences between the two runs, as printed by ``compare``.
        counts: whether the run confirms the submitted one.
        reason: why.
        entry: what is noted beside the suite.
    """

    lines: tuple[str, ...]
    counts: bool
    reason: str
    entry: Mapping[str, Any]


def verify(place: Path, seed: int, runtime: Runtime) -> Verified:
    """Rerun a seed of a submission, and mark it as verified in its folder if the results agree.

    On a machine with the same rounding they must be equal in all rounds; elsewhere every reading must lie within its
    prediction interval of the row's seeds, which together have 95 %.

    Raises:
        ConfigError: see ``opened``; or the submission has no such seed.
        RunError: the run fails.
    """
    with importable(place):
        return _verified(opened(place), seed, runtime)


def _verified(one: Submission, seed: int, runtime: Runtime) -> Verified:
    if seed not in one.records:
        raise ConfigError(f"{one.folder}: no run with seed {seed}; there are {_listed(one.records) or 'none'}")
    own = replace(runtime, results_dir=str(Path(runtime.results_dir) / VERIFICATION))
    again = fit(one.runs[seed].replace(runtime=own))
    submitted, ours = one.records[seed], read_record(again)
    found = compare(one.runs[seed].folder, again)
    alike = all(submitted["environment"].get(name) == ours["environment"].get(name) for name in SAME_MACHINE)
    if found.equal:
        counts, reason = True, "equal in all rounds"
    elif alike:
        counts, reason = False, "a different result on a machine with the same rounding, where it must be equal"
    elif found.within is None:
        counts, reason = False, "fewer than three seeds of the row, so that there is no prediction interval"
    else:
        counts = found.within
        reason = f"on another machine, {'within' if counts else 'outside'} the prediction interval of the row's seeds"
    reading = READING[one.suite.report]
    entry = {
        "seed": seed,
        "equal": found.equal,
        "submitted": submitted[reading]["acc"] if submitted[reading] else None,
        "again": ours[reading]["acc"],
        "code": ", ".join(code_versions(ours)),
        "hardware": hardware(ours["environment"]),
    }
    if counts:
        one.suite.verified.add(one.scale, {one.row.full_name: entry})
    return Verified(found.lines, counts, reason, entry)


def _sources(run: Run) -> dict[str, Path]:
    """Return the source files of a method to submit, by their path relative to their import folder."""
    base, found = imported(KINDS["method"].base), {}
    for cls in run.class_of("method").__mro__:
        if not issubclass(cls, base) or _is_public(file := Path(inspect.getfile(cls)).resolve()):
            continue
        parts = cls.__module__.split(".")
        found["/".join(parts) + ".py"] = file
        for depth in range(1, len(parts)):
            found["/".join([*parts[:depth], "__init__.py"])] = file.parents[len(parts) - 1 - depth] / "__init__.py"
    return found


def _is_public(file: Path) -> bool:
    """Whether a file is public: part of this repository or of an installed package."""
    homes = ROOT / "methods", Path(sysconfig.get_path("purelib"))
    return any(file.is_relative_to(home.resolve()) for home in homes)


def _by(records: Mapping[str, Record], what: Callable[[Record], Any]) -> dict[Any, list[str]]:
    """Group names of records by a property."""
    found: dict[Any, list[str]] = {}
    for name, record in records.items():
        found.setdefault(what(record), []).append(name)
    return found


def _listed(things: Iterable[Any]) -> str:
    return ", ".join(map(str, things))
