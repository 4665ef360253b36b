"""One cell of a table: what its runs give, and what that says of the printed value."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from benchmark.config import Run, RunConfig
from benchmark.report.layout import Line
from benchmark.report.statistics import interval
from benchmark.report.verdicts import Effect, Level, difference, effect, judge, level
from benchmark.runs.records import READING
from benchmark.runs.states import RunState
from benchmark.suites.plan import Plan, Row, Table, control_of, operands
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

LACKS = ("failed", "damaged", "outdated", "running", "stale", "missing")  # the first that applies to a seed's runs
BROKEN = LACKS[:3]  # rows with such a seed get no verdict


@dataclass(frozen=True)
class Judgement:
    """What our runs say of a printed value; see ``Line``."""

    delta: float | None = None
    level: Level | None = None
    effect: Effect | None = None
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One metric of one row of a table at a scale.

    Args:
        suite: the suite.
        plan: its runs at the scale.
        published: printed values by ``Row.key``.
        table: the table, with the rows that the scale has.
        row: one of them.
        metric: one of the table's.
    """

    suite: Suite
    plan: Plan
    published: Mapping[Any, str]
    table: Table
    row: Row
    metric: str

    @cached_property
    def runs(self) -> list[list[Run]]:
        """The row's runs by seed: one, or two for a difference; none for a pending row."""
        if self.row.pending:
            return []
        parts = operands(self.row, self.table.rows) if self.row.minus else (self.row,)
        return [[self.plan.run(part, seed) for part in parts] for seed in self.plan.seeds]

    @cached_property
    def found(self) -> list[list[RunState]]:
        """What is there of ``runs``."""
        return [[self.plan.found[run.id] for run in group] for group in self.runs]

    @property
    def config(self) -> RunConfig | None:
        """The configuration of the runs; a pending row takes that of another row on its data set."""
        if self.runs:
            return self.runs[0][0].config
        others = (row for row in reversed(self.table.rows) if row.dataset == self.row.dataset)
        known = next((row for row in others if not (row.minus or row.pending)), None)
        return self.plan.run(known, self.plan.seeds[0]).config if known else None

    def by_seed(self, reading: str = "") -> dict[int, float]:
        """A value per seed whose runs are complete; for two runs their difference.

        Args:
            reading: default: the one that the suite reports.
        """
        name, values = READING[reading or self.suite.report], {}
        for seed, group in zip(self.plan.seeds, self.found, strict=False):
            got = [run.record[name].get(self.metric) for run in group if run.record is not None]
            if len(got) == len(group) and None not in got:
                values[seed] = got[0] - sum(got[1:])
        return values

    def printed(self, row: Row | None = None) -> tuple[str | None, str | None]:
        """The printed value and its spread, of this row or another one."""
        own = row or self.row
        return self.published.get(own.key(self.metric)), self.published.get(own.key(f"{self.metric} std"))

    @property
    def lacks(self) -> str:
        """Why seeds have no value, e.g. ``failed (1)``; empty if all have one or the others are pending."""
        if self.row.pending:
            return "pending"
        n = len(self.by_seed())
        if n == len(self.found):
            return ""
        reasons = [next((s for s in LACKS if any(run.state == s for run in group)), "complete") for group in self.found]
        told = [f"{reason} ({reasons.count(reason)})" for reason in LACKS[:-1] if reason in reasons]
        nothing = "not run" if "missing" in reasons else "no value"
        return "; ".join(told) or ("" if n else nothing)

    @property
    def broken(self) -> bool:
        """Whether a run has failed, or its record cannot be used."""
        return any(run.state in BROKEN for group in self.found for run in group)

    def judged(self) -> Judgement:
        """Judge the printed value by the runs, at a scale that follows the paper's protocol.

        Raises:
            ConfigError: the table in ``judged_by`` prints no such value.
        """
        own, _ = self.printed()
        printed, printed_runs, where = self._judged_by()
        missing = "" if own or not self.published else f"published: {self.table.unpublished}"
        values = list(self.by_seed().values())
        if printed is None or not values:
            return Judgement(verdict=missing)
        delta = difference(statistics.fmean(values), own) if own else None
        control = self._control() if own else None
        if self.broken:
            return Judgement(delta, note="a failed run")
        if control and control.broken:
            return Judgement(delta, note="a failed run of the control")
        if not self._has_the_suites_seeds():
            return Judgement(delta, note="other seeds than the suite's")
        of_level, of_effect = level(values, printed, printed_runs), None
        if own and control and (its_printed := control.printed()[0]):
            of_effect = effect(self.by_seed(), control.by_seed(), own, its_printed)
        verdict, note = judge(len(values), of_level, of_effect, control is not None)
        return Judgement(delta, of_level, of_effect, verdict + where if verdict else missing, note)

    def _judged_by(self) -> tuple[str | None, int, str]:
        """The printed value that counts, the number of runs behind it, and, if another table prints it, where."""
        if not self.row.judged_by:
            return self.printed()[0], self.table.published_runs, ""
        elsewhere = replace(self.row, table=self.row.judged_by)
        printed, spread = self.printed(elsewhere)
        if printed is None:
            where = f"{self.suite.where}, {self.row.name}: judged_by"
            raise ConfigError(f"{where}: there is no {self.metric} of {elsewhere.name}")
        runs = next(one.published_runs for one in self.suite.tables if one.number == self.row.judged_by)
        return printed, runs, f", by table {self.row.judged_by}: {printed}{f' ± {spread}' if spread else ''}"

    def _control(self) -> "Cell | None":
        """The same metric of the row's control, if it is printed."""
        control = control_of(self.row, self.table.rows, self.table.control)
        return replace(self, row=control) if control and self.printed(control)[0] else None

    def _has_the_suites_seeds(self) -> bool:
        """Whether a mean may be judged: over (some of) the suite's seeds, and over others only if all these are
        complete."""
        own, seeds = set(self.suite.scale(self.plan.scale)["seeds"]), self.plan.seeds
        complete = {
            seed for seed, group in zip(seeds, self.found, strict=True) if all(run.state == "complete" for run in group)
        }
        return own <= set(seeds) and (complete <= own or own <= complete)

    def line(self) -> Line:
        """The cell as tables show it."""
        values, config = list(self.by_seed().values()), self.config
        printed, spread = self.printed()
        judged = Judgement()
        if self.suite.compares(self.plan.scale):
            judged = self.judged()
        elif not printed and self.published:
            judged = Judgement(verdict=f"published: {self.table.unpublished}")
        return Line(
            row=self.row,
            metric=self.metric,
            data=config.data.name if config else "-",
            network=network(config) if config else "-",
            ours=_mean(values),
            std=deviation(values),
            ci95=interval(values),
            n=len(values),
            planned=len(self.runs),
            readings={
                name: _mean(list(self.by_seed(name).values())) if self.metric == "acc" else None
                for name in READING
                if name != "averaged" or (config and config.average_last)
            },
            published=printed,
            spread=spread,
            delta=judged.delta,
            level=judged.level,
            effect=judged.effect,
            lacks=self.lacks,
            verdict=judged.verdict,
            note=judged.note,
            runs=tuple(dict.fromkeys(run.id for group in self.runs for run in group)),
        )


def network(config: RunConfig) -> str:
    """Return the trained network's name and arguments, e.g. ``resnet9 (width=4)``."""
    args = ", ".join(f"{name}={value}" for name, value in config.model_args.items())
    return f"{config.model} ({args})" if args else config.model


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample (divisor n - 1); ``None`` for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def _mean(values: Sequence[float]) -> float | None:
    """The mean, rounded once: ``sum`` rounds differently from Python 3.12 on."""
    return statistics.fmean(values) if values else None
