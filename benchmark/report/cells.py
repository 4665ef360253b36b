"""One cell of a table: what its runs give, and what that says of the printed value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pandas as pd

from benchmark.config import Run, RunConfig
from benchmark.report.frame import NONE, Values
from benchmark.report.statistics import interval
from benchmark.report.verdicts import Lead, difference, lead, places, prediction
from benchmark.runs.records import READING
from benchmark.suites.plan import Plan, Row, Table, control_of, operands
from benchmark.suites.suite import Suite

LACKS = ("failed", "damaged", "outdated", "running", "stale", "missing")  # the first that applies to a seed's runs
BROKEN = LACKS[:3]  # rows with such a seed get no verdict
UNTOUCHED = ("not run", "pending")  # reasons for a missing value that are not shown
NONE_RUN = "–"


@dataclass(frozen=True)
class Judgement:
    """What our runs say of a printed value, at a scale that follows the paper's protocol.

    Args:
        delta: ours, rounded as printed, minus published.
        level: half-width of the prediction interval of the level, in points.
        lead: the row minus the table's control.
        verdict: on the lead, or why there is no published value.
        note: why the verdict is open.
    """

    delta: float | None = None
    level: float | None = None
    lead: Lead | None = None
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One metric of one row of a suite's table.

    Args:
        row: the suite's row.
        metric: name of the metric.
        config: configuration of the runs; a pending row has that of another row on its data set, if there is one.
        scores: values by seed in the reading that the suite reports, in percent; of two runs their difference.
        readings: for accuracy, the means of the readings ``best``, ``last`` and ``last_k_mean``, and of ``averaged`` if
            the runs have it; for other metrics ``None``.
        states: the states of a seed's runs, by seed: one, or two for a difference; none for a pending row.
        runs: run ids without duplicates, in the order of the seeds.
        published: value as printed, or ``None``.
        spread: printed spread over seeds, or ``None``.
        judged: what our runs say of the printed value.
    """

    row: Row
    metric: str
    config: RunConfig | None
    scores: pd.Series
    readings: Mapping[str, float | None]
    states: Mapping[int, tuple[str, ...]]
    runs: tuple[str, ...]
    published: str | None
    spread: str | None
    judged: Judgement = Judgement()

    @property
    def data(self) -> str:
        """Data set used by the runs, ``-`` if unknown."""
        return self.config.data.name if self.config else "-"

    @property
    def network(self) -> str:
        """Network trained by the runs, with its arguments; ``-`` if unknown."""
        return network(self.config) if self.config else "-"

    @property
    def ours(self) -> float | None:
        """Mean over the seeds with a value."""
        return _mean(self.scores)

    @property
    def std(self) -> float | None:
        """Standard deviation over these seeds (divisor n - 1)."""
        return float(self.scores.std()) if self.n > 1 else None

    @property
    def ci95(self) -> float | None:
        """Half-width of the 95 % t interval of the mean."""
        return interval(self.scores)

    @property
    def n(self) -> int:
        """Number of seeds with a value."""
        return len(self.scores)

    @property
    def planned(self) -> int:
        """Number of planned seeds."""
        return len(self.states)

    @property
    def lacks(self) -> str:
        """Why seeds have no value, e.g. ``failed (1)``, ``not run`` or ``pending``; empty if all have one."""
        if self.row.pending:
            return "pending"
        if self.n == self.planned:
            return ""
        reasons = [next((s for s in LACKS if s in states), "complete") for states in self.states.values()]
        told = [f"{reason} ({reasons.count(reason)})" for reason in LACKS[:-1] if reason in reasons]
        nothing = "not run" if "missing" in reasons else "no value"
        return "; ".join(told) or ("" if self.n else nothing)

    @property
    def broken(self) -> bool:
        """Whether a run has failed, or its record cannot be used."""
        return any(state in BROKEN for states in self.states.values() for state in states)

    @property
    def untouched(self) -> bool:
        """Whether no seed has been run, so that the cell is empty."""
        return not self.n and self.lacks in UNTOUCHED

    @property
    def count(self) -> str:
        """Number of seeds in the mean: ``3``, or ``1 of 3``."""
        return f"{self.n} of {self.planned}" if self.n < self.planned else str(self.n)

    @property
    def status(self) -> str:
        """Missing seeds, and the verdict: ``4 of 5; running (1); holds``."""
        seeds = self.count if 0 < self.n < self.planned else ""
        return "; ".join(filter(None, (seeds, self.lacks, self.judged.verdict)))

    @property
    def judgement(self) -> str:
        """Missing seeds without the count, and the verdict if the cell has a printed value."""
        verdict = "" if self.judged.delta is None else self.judged.verdict
        return "; ".join(filter(None, (self.lacks, verdict)))

    @property
    def ours_text(self) -> str:
        """Mean, half-width and number of seeds, or why they are missing."""
        if self.ours is None:
            return NONE_RUN if self.untouched else self.lacks
        half = "" if self.ci95 is None else f" ± {self.ci95:.2f}"
        return f"{self.ours:.2f}{half} ({self.count})"

    @property
    def published_text(self) -> str:
        """The printed value with its spread; empty if there is none."""
        return f"{self.published} ± {self.spread}" if self.published and self.spread else self.published or ""

    @property
    def level_text(self) -> str:
        """The difference with the decimals of the printed value, and the half-width of the prediction interval."""
        if self.judged.delta is None:
            return ""
        delta = f"{self.judged.delta:+.{places(self.published or '')}f}"
        return delta if self.judged.level is None else f"{delta}, ± {self.judged.level:.2f}"

    @property
    def effect_text(self) -> str:
        """The lead with its half-width, and the printed lead in brackets; empty if there is none."""
        of = self.judged.lead
        if of is None:
            return ""
        half = f" ± {of.half:.2f}" if of.n > 1 else ""
        return f"{of.ours:+.2f}{half} ({of.printed:+.{of.places}f})"


@dataclass(frozen=True)
class Cells:
    """Makes the cells of a table at a scale.

    Args:
        suite: the suite.
        plan: its runs at the scale.
        published: printed values by ``Row.key``.
        table: the table, with the rows that the scale has.
        known: values of the runs.
    """

    suite: Suite
    plan: Plan
    published: Mapping[Any, str]
    table: Table
    known: Values

    def cell(self, row: Row, metric: str) -> Cell:
        """Make a cell."""
        cell = self._unjudged(row, metric)
        return replace(cell, judged=self._judge(cell))

    def _unjudged(self, row: Row, metric: str) -> Cell:
        parts: tuple[Row, ...] = operands(row, self.table.rows) if row.minus else (row,)
        seeds = () if row.pending else self.plan.seeds
        runs = {seed: [self.plan.run(part, seed) for part in parts] for seed in seeds}
        config = self._config(row, runs)
        names = [name for name in READING if name != "averaged" or (config and config.average_last)]
        return Cell(
            row,
            metric,
            config,
            self._scores(parts, metric, self.suite.report),
            {name: _mean(self._scores(parts, metric, name)) if metric == "acc" else None for name in names},
            {seed: tuple(self.plan.found[run.id].state for run in group) for seed, group in runs.items()},
            tuple(dict.fromkeys(run.id for group in runs.values() for run in group)),
            *self._printed(row, metric),
        )

    def _config(self, row: Row, runs: Mapping[int, list[Run]]) -> RunConfig | None:
        if runs:
            return runs[self.plan.seeds[0]][0].config
        others = (one for one in reversed(self.table.rows) if one.dataset == row.dataset)
        known = next((one for one in others if not (one.minus or one.pending)), None)
        return self.plan.run(known, self.plan.seeds[0]).config if known else None

    def _scores(self, parts: tuple[Row, ...], metric: str, reading: str) -> pd.Series:
        first, *rest = (self.known.get((part.full_name, reading, metric), NONE) for part in parts)
        return (first - rest[0]).dropna() if rest else first

    def _printed(self, row: Row, metric: str) -> tuple[str | None, str | None]:
        """The printed value and its spread."""
        return self.published.get(row.key(metric)), self.published.get(row.key(f"{metric} std"))

    def _judge(self, cell: Cell) -> Judgement:
        printed, runs = cell.published, self.table.published_runs
        missing = "" if printed or not self.published else f"published: {self.table.unpublished}"
        if not self.suite.compares(self.plan.scale) or printed is None or cell.ours is None:
            return Judgement(verdict=missing)
        delta, beside = difference(cell.ours, printed), self._control(cell)
        unsound = self._unsound(cell, beside)
        if unsound:
            return Judgement(delta, verdict="open" if beside else "", note=unsound if beside else "")
        found = None
        if beside and beside.published:
            found = lead(cell.scores, beside.scores, printed, beside.published, runs)
        nothing = ("open", "no seed in common with the control") if beside else ("", "")
        return Judgement(delta, prediction(list(cell.scores), runs), found, *(found.verdict if found else nothing))

    def _unsound(self, cell: Cell, beside: Cell | None) -> str:
        """Why the seeds of a cell may not be judged; empty if they may."""
        if cell.broken:
            return "a failed run"
        if beside and beside.broken:
            return "a failed run of the control"
        return "" if self._has_the_suites_seeds(cell) else "other seeds than the suite's"

    def _control(self, cell: Cell) -> Cell | None:
        """The same metric of the row's control, if it is printed."""
        control = control_of(cell.row, self.table.rows, self.table.control)
        return self._unjudged(control, cell.metric) if control and self._printed(control, cell.metric)[0] else None

    def _has_the_suites_seeds(self, cell: Cell) -> bool:
        """Whether a mean may be judged: over (some of) the suite's seeds, and over others only if all these are
        complete."""
        own = set(self.suite.scale(self.plan.scale)["seeds"])
        complete = {seed for seed, states in cell.states.items() if set(states) == {"complete"}}
        return own <= set(self.plan.seeds) and (complete <= own or own <= complete)


def network(config: RunConfig) -> str:
    """Return the trained network's name and arguments, e.g. ``resnet9 (width=4)``."""
    args = ", ".join(f"{name}={value}" for name, value in config.model_args.items())
    return f"{config.model} ({args})" if args else config.model


def _mean(values: pd.Series) -> float | None:
    """The mean, rounded once."""
    return fmean(values) if len(values) else None
