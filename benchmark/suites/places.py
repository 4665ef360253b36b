"""The rows of suites that a run belongs to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.config import Run, differences
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite


@dataclass(frozen=True)
class Place:
    """One seed of a row.

    Args:
        suite: the suite.
        scale: one of its scales.
        row: one of its rows.
        run: the row's run with this seed.
    """

    suite: Suite
    scale: str
    row: Row
    run: Run

    @property
    def name(self) -> str:
        """Suite, scale and row, such as ``text board all/AG News/FixMatch``."""
        return f"{self.suite.paper} {self.scale} {self.row.full_name}"


def places(suites: Iterable[Suite], scale: str) -> list[Place]:
    """All seeds of all rows of the suites that have this scale.

    Raises:
        ConfigError: a suite has a row that cannot be run.
    """
    found = []
    for suite in suites:
        if scale not in suite.spec["scales"]:
            continue
        plan = suite.plan(scale)
        for row in suite.rows:
            ids = plan.of_row.get(row.full_name, {})
            found += [Place(suite, scale, row, plan.runs[key]) for key in ids.values()]
    return found


def places_of(record: Mapping[str, Any], known: Sequence[Place]) -> list[Place]:
    """Those of the known places that a record is a run of: it has their id and their configuration.

    The record is read as text; no class that it names is imported.
    """
    same = [one for one in known if one.run.id == record["run_id"]]
    return [one for one in same if not differences(record["config"], one.run.config)]
