"""The site that ``make docs`` has built: every module and result is there, its notebook has run, it opens offline."""

import csv
import html
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sphinx.util.matching import Matcher

from checkouts import committed, in_a_checkout

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROWS = ("all labels", "fed_consist", "labels of one client")


@pytest.fixture(scope="module")
def site() -> Path:
    """The pages; ``make docs`` does not come this far if there is a warning, or the notebook fails."""
    return ROOT / "build/docs"


def test_a_first_federation(site: Path) -> None:
    """The tutorial has run: a split, a curve, and a table in which labels are worth something."""
    text = (site / "docs/tutorials/first-federation.html").read_text(encoding="utf-8")
    told = html.unescape(re.sub(r"<[^>]+>", " ", text))
    if "cell_output" not in text:
        pytest.skip("built without running the notebook")
    assert re.search(r"all +1437 +120 ", told) and "partition hash" in told
    assert len(re.findall(r'<img [^>]*src="[^"]*_images/', text)) == 1
    upper, semi, lower = (float(re.search(rf"{row}\s+([\d.]+)\s", told)[1]) for row in ROWS)
    assert upper > lower + 10 and semi > 10  # points


def test_the_reference_has_every_module(site: Path) -> None:
    """But for those that hold nothing to read: packages, and what starts the program."""
    files = [file for package in ("benchmark", "methods", "datamodules") for file in (ROOT / package).rglob("*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    wanted = {one for one in modules if not re.search(r"__(init|main)__$|^benchmark\.perf\.", one)}
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
