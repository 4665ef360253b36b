"""Input of the pages: runs on disk, and suites at the scales that were run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from rich.progress import track

from benchmark.config import SCALES, Runtime
from benchmark.console import Console
from benchmark.report import tables
from benchmark.report.curves import Curve, read_curve
from benchmark.report.layout import Rendered
from benchmark.report.settings import Setting, settings
from benchmark.runs.records import Record, read_record
from benchmark.suites.plan import Plan
from benchmark.suites.suite import Suite, available, load

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Found:
    """A run on disk."""

    path: Path
    record: Record

    @property
    def page(self) -> str:
        """Path of its page below the site."""
        return f"runs/{self.path.name}.html"

    @property
    def curve(self) -> Curve:
        """Its rows with the cumulative cost of each round."""
        return read_curve([self.path])


@dataclass(frozen=True)
class ScaledSuite:
    """A suite at a scale."""

    suite: Suite
    scale: str
    plan: Plan
    tables: Sequence[Rendered]

    @property
    def page(self) -> str:
        """Path of the suite's page below the site."""
        return f"papers/{self.suite.paper}.html"

    @property
    def compare(self) -> bool:
        """Whether the scale is the paper's protocol."""
        return self.suite.compares(self.scale)

    @property
    def note(self) -> str:
        """Explanation of the scale."""
        return str(self.suite.scale(self.scale).get("note", ""))

    @cached_property
    def settings(self) -> list[Setting]:
        """The compared settings of a ranked suite."""
        return settings(self.suite, self.plan) if self.suite.ranked else []

    @property
    def complete(self) -> int:
        """Number of runs with a record."""
        return sum(run.record is not None for run in self.plan.found.values())


def find_runs(results: Path) -> dict[str, Found]:
    """Find all runs below a results folder, by run id.

    Raises:
        RunError: a record is damaged.
    """
    files = sorted(results.glob("runs/*/record.json"))
    found = [Found(file.parent, read_record(file.parent)) for file in waiting(files, "records")]
    return {run.record["run_id"]: run for run in found}


def find_views(papers: Iterable[str], results: Path, found: Mapping[str, Found]) -> list[ScaledSuite]:
    """Find suites at every scale that was run, and requested suites also at the paper's scale.

    Args:
        papers: suites by key or path; none: all with any run.
        results: folder that holds ``runs/``.
        found: the runs there.

    Raises:
        ConfigError: there is no such suite.
    """
    views, asked = [], list(papers)
    for suite in waiting([load(paper) for paper in asked or available()], "tables"):
        for scale in sorted(suite.spec["scales"], key=SCALES.index, reverse=True):  # the paper's first, quick last
            wanted = bool(asked) and suite.compares(scale)
            if not (wanted or _may_have_run(suite, scale, found)):
                continue
            plan = suite.plan(scale, runtime=Runtime(results_dir=str(results)))
            if wanted or any(run.state != "missing" for run in plan.found.values()):
                views.append(ScaledSuite(suite, scale, plan, tables.render(suite, plan, suite.published())))
    return views


def waiting(things: Sequence[Thing], what: str) -> Iterable[Thing]:
    """Iterate over things, with a progress bar on a terminal."""
    console = Console(stderr=True)
    return track(things, what, console=console, transient=True, disable=not console.is_terminal)


def _may_have_run(suite: Suite, scale: str, found: Mapping[str, Found]) -> bool:
    """Whether any record has the scale and a method of the suite: a quick check before planning its runs."""
    methods = {str(label.get("method")).rpartition(".")[2] for label in suite.spec["labels"].values()}
    named = {
        name
        for run in found.values()
        if run.record["scale"] == scale
        for path in [run.record["config"]["method"]["class_path"]]
        for name in (*path.split("."), run.record["method"])
    }
    return bool(methods & named)
