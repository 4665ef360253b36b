"""Renders the pages and writes them."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.progress import track

from benchmark.console import Console
from benchmark.files import write_atomic
from benchmark.report import tables
from benchmark.site.gather import Found, View, find_runs, find_views
from benchmark.site.pages import home_page, paper_page, run_page, runs_page, value_text
from datamodules.common.errors import ConfigError

MARK = ".fssl-bench-site"  # in a folder that may be written again
FOLDERS = ("papers", "runs", "tables")
STATIC = ("style.css", "site.js")


def build(results: Path, out: Path, papers: Sequence[str] = ()) -> list[Path]:
    """Make the site.

    Args:
        results: folder that holds ``runs/``.
        out: folder to write. It may be missing, empty, or a site made before, whose pages are replaced.
        papers: suites to show, by key or path; default: all.

    Returns:
        The files of the site.

    Raises:
        ConfigError: an unknown suite, or ``out`` holds something else.
        RunError: a damaged record.
    """
    if out.exists() and not (out.is_dir() and ((out / MARK).exists() or not any(out.iterdir()))):
        raise ConfigError(f"--out {out}: holds something else than such a site; name a new or an empty folder")
    found = find_runs(results)
    return write(render(find_views(papers, results, found), found), out)


def render(views: Sequence[View], found: Mapping[str, Found]) -> dict[str, str]:
    """The text of every file by its path below the site; a terminal shows how far the pages of runs are."""
    templates, console = _environment(), Console(stderr=True)

    def page(template: str, values: Mapping[str, Any]) -> str:
        return templates.get_template(template).render(values)

    of_page: dict[str, list[View]] = {}
    for view in views:
        of_page.setdefault(view.page, []).append(view)
    static = resources.files("benchmark.site") / "static"
    texts = {name: (static / name).read_text(encoding="utf-8") for name in STATIC}
    texts |= {MARK: "", "index.html": page("home.html", home_page(views, found))}
    texts |= {"runs.html": page("runs.html", runs_page(found, views))}
    texts |= {name: page("paper.html", paper_page(own, found)) for name, own in of_page.items()}
    waiting = track(found.values(), "pages of runs", console=console, transient=True, disable=not console.is_terminal)
    texts |= {run.page: page("run.html", run_page(run, views)) for run in waiting}
    for view in views:
        forms = tables.exports(view.suite, view.tables)
        texts |= {f"tables/{view.suite.paper}-{view.scale}{suffix}": text for suffix, text in forms.items()}
    return texts


def write(texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write the files, and remove those of a former site that are no longer part of it."""
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
    """The templates; every text that they show is escaped."""
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
