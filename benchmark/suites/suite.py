"""A suite: the tables of a paper, described in a YAML file, and the runs that they stand for.

A run that several tables share has one ``run_id`` and is run once.
"""

import sysconfig
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.config import Run, Runtime, apply, differences, from_dict
from benchmark.suites.plan import Plan, Row, Table, read_published
from benchmark.suites.schema import Layer, Layers, ScaleSpec, TableSpec, check, on_top, with_its_method, without_tables
from benchmark.suites.side_files import SideFile
from datamodules.common.errors import BenchError, ConfigError, unknown
from datamodules.common.yaml import read_yaml
from methods import models

Names = Collection[str]
SUFFIX = ".yaml"
SUITES = Path(__file__).parent


class Suite:
    """A paper's tables.

    Args:
        spec: content of the suite file.
        where: what finds it on the command line: its name, or the path of its file.
        folder: where its file is; the folders of ``tuned`` and ``admitted`` are beside it.
        extended: the suite on top of which ``spec`` was written, and which ``spec`` holds already.

    Attributes:
        given: ``spec`` as it was given.
        tuned: what tuning has tried and chosen for this suite (``choices`` has those of the extended one, too).
        admitted: which settings are ranked.

    Raises:
        ConfigError: an entry is missing or not understood.
    """

    def __init__(
        self, spec: Mapping[str, Any], where: str = "suite", folder: Path = SUITES, extended: "Suite | None" = None
    ) -> None:
        self.given, self.spec = spec, check(spec, where)
        self.where, self.folder, self.extended = where, folder, extended
        self.paper, self.title, self.ranked = self.spec.paper, self.spec.title, self.spec.ranked
        self.tuned, self.admitted = SideFile(folder, "tuned", self.paper), SideFile(folder, "admitted", self.paper)
        self._choices = cache(self.choices)  # each scale is read once
        self._runs: dict[tuple[str, str], Run] = {}
        self.tables = tuple(self._table(number) for number in self.spec.tables)
        self.rows = [row for table in self.tables for row in table.rows]

    def _table(self, number: str) -> Table:
        spec = self.spec.tables[number]
        entries = {name: getattr(spec, name) for name in TableSpec.model_fields}
        rows = []
        for dataset in spec.datasets:
            for row in spec.rows:
                columns, options = dict(row.model_extra or {}), {**spec.set, **row.set}
                rows.append(Row(number, dataset, row.method, columns, options))
        return Table(number=number, rows=tuple(rows), **entries)

    def scale(self, name: str) -> ScaleSpec:
        """The suite's entry for a scale.

        Raises:
            ConfigError: it has none of this name.
        """
        if name not in self.spec.scales:
            raise unknown("scale", name, self.spec.scales, f" ({self.where})")
        return self.spec.scales[name]

    def reading(self, scale: str) -> str:
        """The reading that tables show at a scale: its own ``report``, or the suite's."""
        return self.scale(scale).report or self.spec.report

    def row(self, name: str, scale: str) -> Row:
        """The row that ``name`` means: ``table/dataset/method``, with ``/column=value`` where that is several runs.

        Raises:
            ConfigError: no such row (with the closest one), several different runs, or a row without a run.
        """
        rows = self.matching([name], scale)
        if not rows:
            raise self._nothing(scale, {row.method for row in self._meant(name, scale)})
        if len({self.run(row, scale).id for row in rows}) > 1:
            raise ConfigError(f"row '{name}' is several runs: name one of {', '.join(row.full_name for row in rows)}")
        return rows[0]

    def run(self, row: Row, scale: str) -> Run:
        """The run of a row with the scale's first seed, resolved once.

        Raises:
            ConfigError: the row's configuration cannot be run, or its network lacks an option; names suite and row.
        """
        key = (scale, row.full_name)
        if key not in self._runs:
            try:
                run = Run.of(from_dict(self.values(row, scale)), row.full_name)
                models.check(run.config.model, run.config.model_args)
                self._runs[key] = run
            except BenchError as error:
                raise ConfigError(f"{self.where}, {row.name}: {error}") from None
        return self._runs[key]

    def runs(self, row: Row, scale: str, seeds: Iterable[int] = (), **changes: Any) -> dict[int, Run]:
        """The runs of a row by seed.

        Args:
            row: of this suite.
            scale: one of its scales.
            seeds: instead of those of the scale.
            changes: as in ``Run.replace``.
        """
        first = self.run(row, scale)
        return {seed: first.replace(seed=seed, **changes) for seed in seeds or self.scale(scale).seeds}

    def check_writable(self, what: str, command: str) -> None:
        """Refuse to write beside a suite that is part of an installed package: an update would replace it.

        Args:
            what: what the command writes, in the plural.
            command: its name.

        Raises:
            ConfigError: the suite is part of one.
        """
        if self.folder.resolve().is_relative_to(Path(sysconfig.get_path("purelib")).resolve()):
            raise ConfigError(
                f"suite {self.paper} is part of an installed package ({self.folder}), but {what} are written beside "
                f"the suite: write your own with `extends: {self.paper}` and {command} that (docs/leaderboard.md)"
            )

    def choices(self, scale: str) -> dict[str, Any]:
        """What tuning has chosen for rows, by ``Row.full_name``, with all that it tried.

        Trials that have not led to a choice yet are none. A choice made for the suite that this one extends counts
        where both have the row alike: the same configuration before tuning, whatever the seeds, and the same rule of
        tuning.
        """
        base = self.extended
        choices = {name: entry for name, entry in self.tuned.own(scale).items() if "options" in entry}
        if base is None or scale not in base.spec.scales or self.scale(scale).tuning != base.scale(scale).tuning:
            return choices
        rows, base_rows = {row.full_name: row for row in self.rows}, {row.full_name: row for row in base.rows}
        for name, entry in base.choices(scale).items():
            row, base_row = rows.get(name), base_rows.get(name)
            if row and base_row and self.before_tuning(row, scale) == base.before_tuning(base_row, scale):
                choices.setdefault(name, entry)
        return choices

    def before_tuning(self, row: Row, scale: str) -> dict[str, Any]:
        """The configuration of a row at a scale apart from its seed and the rates that tuning has chosen."""
        return self.values(row, scale, tuned=False) | {"seed": None}

    def values(self, row: Row, scale: str, tuned: bool = True, last: Layers | None = None) -> dict[str, Any]:
        """The configuration of a row at a scale as the suite gives it, without defaults.

        Its layers override one another in this order: base, data set, label, table and row, scale (``Layers.of``), what
        ``tune`` has chosen, ``last``.

        Args:
            row: of this suite.
            scale: one of its scales.
            tuned: whether to include what tuning has chosen.
            last: the layers of a run of ``tune`` or ``admit``.
        """
        at, label, where = self.scale(scale), self.spec.labels[row.method], (row.table, row.dataset)
        layers = [
            self.spec.base,
            self.spec.datasets[row.dataset],
            Layer(set=label.model_extra or {}),
            Layer(set=row.options),
            *at.of(*where),
            Layer(set=self._choices(scale).get(row.full_name, {}).get("options", {}) if tuned else {}),
            *(last.of(*where) if last else ()),
        ]
        values = apply({"seed": at.seeds[0]}, {"method": label.method})
        for layer in layers:
            values = apply(values, layer.set)
            for method in with_its_method(label.method):
                values = apply(values, layer.methods.get(method, {}))
        return values | {"scale": scale, "report": self.reading(scale)}

    def plan(
        self, scale: str, seeds: Collection[int] | None = None, runtime: Runtime | None = None, **changes: Any
    ) -> Plan:
        """All runs of the suite at a scale, each of them once.

        Args:
            scale: name of the scale.
            seeds: instead of those of the scale.
            runtime: where and how to run.
            changes: ``precision`` and ``rounds`` instead of those of the suite; ``None`` keeps these.

        Raises:
            ConfigError: a row cannot be run, a value is out of range, or a file beside the suite is damaged.
        """
        self.admitted.own(scale)  # so that it is not found damaged when the runs are over
        seeds = tuple(dict.fromkeys(seeds or self.scale(scale).seeds))
        changes = {name: value for name, value in {"runtime": runtime, **changes}.items() if value is not None}
        plan = Plan(scale, {}, {}, seeds, changes.get("rounds"))
        for row in self.matching([], scale):
            runs = self.runs(row, scale, seeds, **changes)
            plan.of_row[row.full_name] = {seed: run.id for seed, run in runs.items()}
            for run in runs.values():
                planned = plan.runs.get(run.id)  # for a row of the same configuration
                plan.runs[run.id] = replace(planned, cells=(*planned.cells, row.full_name)) if planned else run
        return plan

    def select(
        self, plan: Plan, tables: Names = (), methods: Names = (), only: Names = (), seeds: Collection[int] = ()
    ) -> list[Run]:
        """The runs of the rows that pass all filters: all rows with the first seed, then all with the second.

        A sweep that is stopped half-way then leaves comparable rows.

        Args:
            plan: of this suite.
            tables: numbers of tables.
            methods: method labels.
            only: names of rows, or patterns of them (``4/*/mine``).
            seeds: seeds of the plan, in the order in which to run them; default: all.

        Raises:
            ConfigError: a filter names something that does not exist, or nothing is left.
        """
        filters = (("table", tables, self.spec.tables), ("method of this suite", methods, self.spec.labels))
        for what, names, known in filters:
            for name in names:
                if name not in known:
                    raise unknown(what, name, known)
        seeds = list(seeds or plan.seeds)
        chosen: dict[str, Run] = {}
        for row in self.matching(only, plan.scale):
            if (not tables or row.table in tables) and (not methods or row.method in methods):
                chosen |= {key: plan.runs[key] for seed, key in plan.of_row[row.full_name].items() if seed in seeds}
        if not chosen:
            if not methods and not self.matching(only, plan.scale):
                methods = {row.method for name in only for row in self._meant(name, plan.scale)}
            raise self._nothing(plan.scale, methods)
        return sorted(chosen.values(), key=lambda run: seeds.index(run.config.seed))

    def _nothing(self, scale: str, methods: Names) -> ConfigError:
        """The error for filters, or a name, that no run passes; tells whether one of the methods is the reason."""
        without = self.scale(scale).without
        reasons = [f"{name} is not at scale {scale}: {without[name]}" for name in methods if name in without]
        return ConfigError(f"{self.where}: {'; '.join(reasons) or 'no run passes all filters; leave one out'}")

    def matching(self, patterns: Names, scale: str) -> list[Row]:
        """The rows that are run at a scale and match one of the patterns; all of them without a pattern.

        Raises:
            ConfigError: no such row.
        """
        without = self.scale(scale).without
        meant = {row.full_name for pattern in patterns for row in self._meant(pattern, scale)}
        return [row for row in self.rows if row.method not in without and (not patterns or row.full_name in meant)]

    def _meant(self, pattern: str, scale: str) -> list[Row]:
        """The rows that a pattern means: those of that name, or else all that match it as a glob.

        Raises:
            ConfigError: no such row.
        """
        rows = [row for row in self.rows if pattern in (row.name, row.full_name)]
        rows = rows or [row for row in self.rows if fnmatch(row.name, pattern) or fnmatch(row.full_name, pattern)]
        if not rows:
            names = dict.fromkeys(name for row in self.rows for name in (row.name, row.full_name))
            (close,) = get_close_matches(pattern, names, n=1, cutoff=0.0)
            raise ConfigError(
                f"unknown row '{pattern}'; did you mean '{close}'? `status --paper {self.where} --scale {scale}` lists "
                "all"
            )
        return rows

    def published(self) -> dict[Any, str]:
        """Published values as printed, by ``Row.key``; none if the suite has ``published: null``.

        Their file lies beside the suite or the one it extends, or in the package.

        Raises:
            ConfigError: the file is missing, or see ``read_published``.
        """
        name = self.spec.published
        if name is None:
            return {}
        paths = [*(suite.folder / name for suite in (self, self.extended) if suite), SUITES / "published" / name]
        return read_published(next((path for path in paths if path.exists()), paths[0]))


def available() -> list[str]:
    """Names of the suites in this package."""
    return sorted(file.stem for file in SUITES.glob(f"*{SUFFIX}"))


def load(paper: str, extending: tuple[Path, ...] = ()) -> Suite:
    """A suite by its name, or by the path of its YAML file, together with the suite that it extends, if any.

    Args:
        paper: name or path.
        extending: the files that led to this one by ``extends``.

    Raises:
        ConfigError: no such suite, or one that extends itself.
    """
    if paper.endswith(SUFFIX):
        file = Path(paper)
    elif paper in available():
        file = SUITES / (paper + SUFFIX)
    else:
        raise unknown("suite", paper, available(), "; the path of a suite.yaml works too")
    if file.resolve() in extending:
        raise ConfigError(f"suite {paper}: it extends itself; name another suite under `extends:`")
    spec = read_yaml(file, "suite")
    if "extends" not in spec:
        return Suite(spec, paper, file.parent)
    name = str(spec.pop("extends"))
    extended = load(str(file.parent / name) if name.endswith(SUFFIX) else name, (*extending, file.resolve()))
    return extend(extended, spec, paper, file.parent)


def extend(extended: Suite, spec: Mapping[str, Any], where: str, folder: Path) -> Suite:
    """A suite with what ``spec`` says on top of another one: rows of a table are added to it.

    A table that is left out takes the one of its rows at their papers' rates with it, and what scales say of both.

    Raises:
        ConfigError: it has the other one's name, or see ``Suite``.
    """
    if str(spec.get("paper", extended.paper)) == extended.paper:
        raise ConfigError(
            f"suite {where}: give it a name of its own under `paper:`; "
            f"under that of {extended.where} it would overwrite its tables"
        )
    tables = spec.get("tables")
    left_out = {str(name) for name, table in tables.items() if table is None} if isinstance(tables, Mapping) else set()
    gone = {name for name, table in extended.spec.tables.items() if left_out & {name, table.untuned}}
    return Suite(without_tables(on_top(extended.given, spec), gone), where, folder, extended)


@dataclass(frozen=True)
class Place:
    """One seed of a row of a suite at a scale, and its run."""

    suite: Suite
    scale: str
    row: Row
    run: Run

    @property
    def name(self) -> str:
        """Suite, scale and row, such as ``news board all/AG News/FixMatch``."""
        return f"{self.suite.paper} {self.scale} {self.row.full_name}"


def places(suites: Iterable[Suite], scale: str, runtime: Runtime | None = None) -> list[Place]:
    """All seeds of all rows of the suites that have this scale, run as ``runtime`` says.

    Raises:
        ConfigError: a suite has a row that cannot be run.
    """
    all_places = []
    for suite in suites:
        if scale in suite.spec.scales:
            plan, rows = suite.plan(scale, runtime=runtime), suite.matching([], scale)
            all_places += [Place(suite, scale, row, plan.run(row, seed)) for row in rows for seed in plan.seeds]
    return all_places


def places_of(record: Mapping[str, Any], known: Sequence[Place]) -> list[Place]:
    """Those of the known places that a record is a run of: it has their id and their configuration.

    The record is read as text; no class that it names is imported.
    """
    same_id = [place for place in known if place.run.id == record["run_id"]]
    return [place for place in same_id if not differences(record["config"], place.run.config)]
