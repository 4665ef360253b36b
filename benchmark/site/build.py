"""Rendering and writing of the pages."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmark.files import write_atomic
from benchmark.registry import unknown
from benchmark.report import leaderboard, tables
from benchmark.site.gather import Found, ScaledSuite, find_runs, find_views, waiting
from benchmark.site.pages import home_page, paper_page, run_page, runs_page, value_text
from benchmark.suites.schema import METRICS
from benchmark.suites.suite import available
from datamodules.common.errors import ConfigError

MARK = ".fssl-bench-site"  # marks a folder that may be overwritten
FOLDERS = ("papers", "runs", "tables")
STATIC = ("style.css", "site.js")


def build(
    results: Path, out: Path, papers: Sequence[str] = (), runs: bool = False, metrics: Sequence[str] = ()
) -> list[Path]:
    """Build the site.

    Args:
        results: folder that holds ``runs/``.
        out: folder to write. It may be missing, empty, or an earlier site, whose pages are replaced.
        papers: suites to show, by key or path; default: all with any run.
        runs: whether every run gets its own page.
        metrics: columns of the leaderboards in LaTeX; default: those of their suites.

    Returns:
        The files written.

    Raises:
        ConfigError: an unknown suite or metric, or ``out`` contains something else.
        RunError: a record is damaged.
    """
    if out.exists() and not (out.is_dir() and ((out / MARK).exists() or not any(out.iterdir()))):
        raise ConfigError(f"--out {out}: contains files that are not such a site; choose a new or an empty folder")
    for name in metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS, " (--metrics)")
    found = find_runs(results)
    views = find_views(papers, results, found)
    shown = {view.suite.paper for view in views}
    idle = [] if papers else [name for name in available() if name not in shown]
    return write(render(views, found, runs, idle, metrics), out)


def render(
    views: Sequence[ScaledSuite],
    found: Mapping[str, Found],
    runs: bool = False,
    idle: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> dict[str, str]:
    """Render every file, by its path below the site.

    Args:
        views: suites at their scales.
        found: all runs.
        runs: whether each run gets a page.
        idle: suites without any run, which are only named.
        metrics: columns of the leaderboards in LaTeX; default: those of their suites.
    """
    templates, linked = _environment(), found if runs else {}

    def page(template: str, values: Mapping[str, Any]) -> str:
        return templates.get_template(template).render(values)

    of_page: dict[str, list[ScaledSuite]] = {}
    for view in views:
        of_page.setdefault(view.page, []).append(view)
    static = resources.files("benchmark.site") / "static"
    texts = {name: (static / name).read_text(encoding="utf-8") for name in STATIC}
    texts |= {MARK: "", "index.html": page("home.html", home_page(views, found, idle))}
    texts |= {"runs.html": page("runs.html", {**runs_page(found, views), "linked": linked})}
    of_suites = waiting(list(of_page.items()), "pages of suites")
    texts |= {name: page("paper.html", paper_page(own, linked)) for name, own in of_suites}
    of_runs = waiting(list(linked.values()), "pages of runs")
    texts |= {run.page: page("run.html", run_page(run, views)) for run in of_runs}
    for view in views:
        if view.settings:
            board = f"tables/{view.suite.paper}-{view.scale}-leaderboard.tex"
            texts[board] = leaderboard.latex(view.suite, view.plan, view.settings, metrics)
        forms = tables.exports(view.suite, view.tables)
        texts |= {f"tables/{view.suite.paper}-{view.scale}{suffix}": text for suffix, text in forms.items()}
    return texts


def write(texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write the files, and remove those of an earlier site that are no longer part of it."""
    for name in FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomic(out / name, text)
    for name in FOLDERS:
        for path in (out / name).iterdir():
            if f"{name}/{path.name}" not in texts:
                path.unlink()
    return [out / name for name in texts]


def _environment() -> Environment:
    """Return the template environment, with automatic escaping."""
    made = Environment(
        loader=PackageLoader("benchmark.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"path": quote, "anchor": lambda text: quote(str(text), safe="")}
    made.globals |= {"value_text": value_text}
    return made
