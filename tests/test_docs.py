"""The site: it has every module and every result, its notebooks run, it builds without a warning and opens offline."""

import csv
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import pytest
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from sphinx.util.matching import Matcher

from checkouts import committed, in_a_checkout

pytestmark = pytest.mark.timeout(900)  # a minute each on idle cores

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HERE = {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
HERE |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
ROWS = ("all labels", "fed_consist", "labels of one client")


def test_a_first_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's cells run in an empty folder: a split, a curve, and a table in which labels are worth something.

    Its runs are shorter; ``make docs`` runs them at full length.
    """
    for variable, value in HERE.items():
        monkeypatch.setenv(variable, value)
    text = (DOCS / "tutorials/first-federation.md").read_text(encoding="utf-8")
    for length, less in (('"rounds": 20', '"rounds": 8'), ('"warmup_rounds": 5', '"warmup_rounds": 3')):
        assert text.count(length) == 1, length
        text = text.replace(length, less)
    notebook = read_myst_markdown_notebook(text, MdParserConfig())
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    told = "".join(one.get("text") or one.get("data", {}).get("text/plain", "") for one in outputs)
    assert re.search(r"all +1437 +120 ", told) and "partition hash" in told
    assert sum("image/png" in one.get("data", {}) for one in outputs) == 1
    upper, semi, lower = (float(re.search(rf"^{row} +([\d.]+)", told, flags=re.M)[1]) for row in ROWS)
    assert upper > lower + 10 and semi > 10  # points
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built with warnings as errors. Notebooks run in the tests above; objects in side bars, and listings of
    source code, which nothing below looks at, would take long.
    """
    out = tmp_path_factory.mktemp("docs")
    extensions = [name for name in runpy.run_path(str(DOCS / "conf.py"))["extensions"] if not name.endswith("viewcode")]
    command = [sys.executable, "-m", "sphinx", "-c", str(DOCS), "--fail-on-warning", "--keep-going", "-q"]
    command += ["-D", "nb_execution_mode=off", "-D", "toc_object_entries=0", "-D", f"extensions={','.join(extensions)}"]
    command += ["-d", str(out / "doctrees"), str(ROOT), str(out / "html")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **HERE}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_the_reference_has_every_module(site: Path) -> None:
    """But for those that hold nothing to read: packages, what starts the program, the tests of a plugin."""
    files = [file for package in ("benchmark", "methods", "datamodules") for file in (ROOT / package).rglob("*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    wanted = {one for one in modules if not re.search(r"__(init|main)__$|^benchmark\.perf\.|\.test_contract$", one)}
    pages = [page.read_text(encoding="utf-8") for page in site.glob("docs/api/*.html")]
    found = {module for page in pages for module in re.findall(r'id="module-([\w.]+)"', page)}
    assert found == wanted | {"methods.models"}


def test_a_result_page_has_its_picture_its_files_and_the_runs_of_its_cells(site: Path) -> None:
    page = (site / "results/tables/rscfed-paper.html").read_text(encoding="utf-8")
    with (ROOT / "results/tables/rscfed-paper.csv").open(encoding="utf-8") as stream:
        runs = [row["runs"] for row in csv.DictReader(stream) if int(row["n"])]
    assert runs and all(one in page for one in runs)
    assert re.search(r"<img [^>]*rscfed-paper-1-CIFAR-100\.svg", page)
    assert re.search(r'href="[^"]*rscfed-paper\.csv"', page) and re.search(r'href="[^"]*rscfed-paper\.tex"', page)


def is_page(file: Path) -> bool:
    return bool(Matcher(runpy.run_path(str(DOCS / "conf.py"))["include_patterns"])(str(file.relative_to(ROOT))))


@in_a_checkout
def test_tables_of_your_own_are_no_pages() -> None:
    """They lie beside the committed ones, in no navigation, and would be a warning in every build."""
    tables = committed("results/tables/*.md")
    assert tables and all(map(is_page, tables))
    assert not any(is_page(ROOT / "results/tables" / f"{name}.md") for name in ("rscfed-quick", "mine-small"))


def test_pages_link_to_one_another_and_to_nothing_that_is_missing(site: Path) -> None:
    """Every page in Markdown is there, each link and anchor leads somewhere, and nothing is loaded from a network.

    ``index.html`` sends on to the landing page.
    """
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    sources = [*DOCS.glob("**/*.md"), *ROOT.glob("results/archive/*.md")]
    sources += filter(is_page, ROOT.glob("results/tables/*.md"))
    sources += [ROOT / f"{name}.md" for name in ("README", "RULES", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
    assert [one for one in sources if site / one.relative_to(ROOT).with_suffix(".html") not in pages] == []
    (landing,) = re.findall(r"url=(\S+)\"", pages[site / "index.html"])
    assert (site / landing).exists()
    names = {page: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for page, text in pages.items()}
    for page, text in pages.items():
        assert not re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(?:https?:)?//', text), page
        for link in set(re.findall(r'<a [^>]*href="([^"]+)"', text)):
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page, link)
            assert not anchor or target not in names or anchor in names[target], (page, link)


@pytest.fixture
def page(site: Path) -> Iterator[Any]:
    """A page on which an error in the console, or a request to anywhere but the disk, fails the test."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        opened = browser.new_page()
        opened.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("requestfailed", lambda request: wrong.append(request.url))
        opened.on("request", lambda r: None if r.url.startswith(("file://", "data:")) else wrong.append(r.url))
        yield opened
        browser.close()
    assert wrong == []


def test_the_search_finds_a_method(page: Any, site: Path) -> None:
    """From the disk, without a server: the paper's page and the class are among what is found."""
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/docs/index.html")
    page.locator("input[name=q]").first.fill("RSCFed")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("document.querySelector('.search-summary').textContent.includes('found')")
    found = page.locator("#search-results li a").all_inner_texts()
    assert "RSCFed (CVPR 2022)" in found and "methods.rscfed.RSCFed" in found


def test_a_click_sorts_a_table(page: Any, site: Path) -> None:
    """By number, the largest first, then the smallest; rows without one stay at the end."""
    page.goto((site / "results/tables/news-board-leaderboard.html").as_uri())
    table = page.locator(".table-wrapper table").first
    head = table.locator("th").filter(has_text="Δ to FedAvg")
    column = head.evaluate("head => head.cellIndex")
    for sign in (-1, 1):
        head.click()
        cells = [row.locator("td").nth(column).inner_text() for row in table.locator("tbody tr").all()]
        values = [float(cell.split()[0]) for cell in cells if cell]
        assert values == sorted(values, key=lambda value: sign * value) and len(set(values)) > 3
        assert cells[-1] == "" and all(cells[:-1])
