"""The values of a suite's runs, of which tables and boards are made; and the rounds of runs."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from benchmark.config import Runtime
from benchmark.runs.records import READING, read_rows
from benchmark.runs.states import Digests, state_of
from benchmark.suites.plan import Plan, Row
from benchmark.suites.suite import Suite

BROKEN = ("failed", "damaged", "outdated")  # the verdict on a row with such a seed is open
LACKS = (*BROKEN, "running", "stale", "missing")  # in the order in which they are told


def values_of(plan: Plan, row: str, reading: str, metric: str) -> pd.Series:
    """A metric of a row's complete runs, by seed; a run whose record lacks it is left out.

    Args:
        plan: the runs of a suite.
        row: ``Row.full_name``.
        reading: as a suite's ``report`` names it.
        metric: its name.
    """
    records = {seed: plan.found[key].record or {} for seed, key in plan.of_row[row].items()}
    values = {seed: (record.get(READING[reading]) or {}).get(metric) for seed, record in records.items()}
    return pd.Series(values, dtype="float64").dropna()


def rounds_of(folder: Path) -> pd.DataFrame:
    """The evaluated rounds of a run, nested keys joined by dots.

    Added are ``bytes`` (up and down) and ``seconds`` since the first round, where the rows tell. A row has the seconds
    of its own round; if not every round is evaluated, the rounds before it count the same.

    Raises:
        RunError: a row is damaged.
    """
    rows = read_rows(folder)
    frame = pd.json_normalize(rows) if rows else pd.DataFrame(columns=["round", "acc"])
    if {"bytes_up", "bytes_down"} <= {*frame}:
        frame["bytes"] = frame["bytes_up"] + frame["bytes_down"]
    if "timing.seconds" in frame:
        rounds = frame["round"].diff().fillna(frame["round"] + 1)
        frame["seconds"] = (frame["timing.seconds"] * rounds).cumsum()
    return frame


def rounds(suite: Suite, rows: Iterable[Row], scale: str, results_dir: str | Path) -> pd.DataFrame:
    """The evaluated rounds of all complete runs of a suite's rows: one line per row, seed and round.

    ``table``, ``dataset``, ``row`` (the method's label, and the columns that distinguish rows of one label) and
    ``seed`` stand before the columns of ``rounds_of``.

    Raises:
        RunError: a row of a run is damaged.
    """
    digests: Digests = {}
    curves = []
    for row in rows:
        name = row.full_name.removeprefix(f"{row.table}/{row.dataset}/")
        for seed, run in suite.runs(row, scale, runtime=Runtime(results_dir=str(results_dir))).items():
            if state_of(run, digests).state == "complete":
                curve = rounds_of(run.folder)
                place = {"table": row.table, "dataset": row.dataset, "row": name, "seed": seed}
                curves.append(pd.concat([pd.DataFrame(place, curve.index), curve], axis=1))
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=["table", "dataset", "row", "seed"])
