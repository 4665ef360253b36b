"""The pages, in a browser: they open without a server, sort, filter, and show every text as text."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from textwrap import fill
from typing import Any
from urllib.parse import unquote

import pytest

from benchmark.cli import main
from benchmark.config import Runtime
from benchmark.report import tables
from benchmark.report.curves import Curve
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import digest, read_rows
from benchmark.site.build import MARK, render, write
from benchmark.site.charts import Charts
from benchmark.site.gather import ScaledSuite, find_runs
from benchmark.site.pages import value_text
from benchmark.suites.suite import Suite, load

HOSTILE = "\"></a><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>&amp; $\\frac{ #0a0c00"
FACTS: Any = {
    "partition_hash": "ab" * 32,
    "data_sha256": {"digits": "cd"},
    "labelled_histogram": [[3, 0]],
    "class_counts": {"labelled": ["3 0", "0 0"], "unlabelled": ["1 0", "2 5"], "server": ["1 1"]},
}


def suite(**more: Any) -> Suite:
    """Two data sets of which one is run, a row that is not, and one with a hostile name."""
    rows = [
        {"method": "low", "M": 1},
        {"method": "high", "M": 1},
        {"method": HOSTILE, "M": 1},
        {"method": "never", "M": 2},
    ]
    return Suite(
        {
            "paper": "toy",
            "title": f"Toy {HOSTILE}",
            "published": None,
            "report": "best",
            "base": {"set": {"data": "digits", "rounds": 3}},
            "datasets": {"A": {}, "B": {"set": {"data.num_clients": 7}}},
            "labels": {
                "low": {"method": "fedavg"},
                "high": {"method": "rscfed"},
                HOSTILE: {"method": "fedirm"},
                "never": {"method": "cbafed"},
            },
            "tables": {
                1: {
                    "title": "One",
                    "datasets": ["A", "B"],
                    "metrics": ["acc", "auc"],
                    "rows": rows,
                    "reference": "low",
                },
                2: {"title": "Two", "datasets": ["B"], "metrics": ["acc"], "rows": rows, "reference": "low"},
            },
            "scales": {"paper": {"seeds": [1, 2], "compare": True, "note": HOSTILE}},
            **more,
        }
    )


def run(view_of: Suite, scale: str, results: Path, accuracies: dict[str, list[float]]) -> ScaledSuite:
    """Runs on data set A that end at these accuracies, by label and seed."""
    plan = view_of.plan(scale, runtime=Runtime(results_dir=str(results)))
    for row in view_of.rows:
        for seed, acc in enumerate(accuracies.get(row.method, []) if row.dataset == "A" else [], start=1):
            one = plan.run(row, seed)
            made = RunFolder(one.folder)
            made.open(one, FACTS)
            for number in range(3):
                costs = {"bytes_up": 1000 * number, "bytes_down": 1000 * number, "timing": {"seconds": 1.0}}
                share = {"pseudo/selected": 0.5, "pseudo/accuracy": 0.25 * number} if row.method == "high" else {}
                made.append({"round": number, "acc": acc - 2 + number, "auc": 90.0, "loss": 1.0, **share, **costs})
            made.finish()
    published = {row.key("acc"): "50.0" for row in view_of.rows} if view_of.compares(scale) else {}
    return ScaledSuite(view_of, scale, plan, tables.render(view_of, plan, published))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of a paper and a leaderboard, with hostile texts wherever a record or a suite may have one."""
    results, out = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("site")
    views = [run(suite(), "paper", results, {"low": [48.0, 52.0], "high": [9.5], HOSTILE: [60.0]})]
    board = suite(paper="board", title="Board", ranked=True, scales={"laptop": {"seeds": [1, 2, 3], "note": "small"}})
    ranked = {
        **board.spec["tables"][1],
        "datasets": ["A"],
        "metrics": ["acc"],
        "rows": board.spec["tables"][1]["rows"][:3],
    }
    board = Suite({**board.spec, "tables": {1: ranked}})
    views += [
        run(board, "laptop", results, {"low": [48.0, 52.0, 50.0], "high": [70.0, 71.0, 72.0], HOSTILE: [9.0, 8.0, 7.0]})
    ]
    for path in results.glob("runs/fedirm-*/record.json"):
        record = json.loads(path.read_text())
        record["environment"] |= {"cpu": HOSTILE, HOSTILE: HOSTILE}
        record |= {"code_version": HOSTILE, "dataset": HOSTILE, "method": HOSTILE}
        record["config"]["model_args"] = {"note": HOSTILE}
        record["data_sha256"] = {HOSTILE: HOSTILE}
        if record["scale"] == "paper":
            record |= {"status": "failed", "error": HOSTILE}
        record["digest"] = digest(record, read_rows(path.parent))
        path.write_text(json.dumps(record))
    views = [render_again(view) for view in views]
    write(render(views, find_runs(results), runs=True), out)
    return out


def render_again(view: ScaledSuite) -> ScaledSuite:
    """The tables of runs whose records have changed."""
    published = {row.key("acc"): "50.0" for row in view.suite.rows} if view.compare else {}
    plan = replace(view.plan)
    return replace(view, plan=plan, tables=tables.render(view.suite, plan, published))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which an error in the console, or a request to anywhere but the disk, fails the test."""
    opened = browser.new_page()
    wrong: list[str] = []
    opened.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("requestfailed", lambda request: wrong.append(request.url))
    opened.on("request", lambda r: None if r.url.startswith(("file://", "data:")) else wrong.append(r.url))
    yield opened
    assert not wrong
    assert opened.evaluate("window.hacked") is None
    opened.close()


def names(page: Any, table: str) -> list[str]:
    """First cells of the rows that are shown, in order; the hostile one is called so."""
    cells = page.locator(f"{table} tbody tr:visible > :first-child").all_inner_texts()
    return ["hostile" if cell.strip() == HOSTILE else cell.strip() for cell in cells]


def test_every_page_opens_from_the_disk_and_fits_a_phone(site: Path, page: Any) -> None:
    """No page is wider than a phone: what is wide scrolls by itself."""
    page.set_viewport_size({"width": 390, "height": 800})
    files = sorted(site.rglob("*.html"))
    assert len(files) == 4 + 13
    for file in files:
        page.goto(file.as_uri())
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, file
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids)), file


def test_links_lead_to_pages(site: Path) -> None:
    """And every run has one that some table links to."""
    linked = set()
    for file in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#]+)', file.read_text()):
            if not link.startswith("data:"):
                target = (file.parent / unquote(unescape(link))).resolve()
                assert target.is_file(), (file, link)
                linked |= {target} if file.parent.name == "papers" else set()
    assert linked >= {path.resolve() for path in site.glob("runs/*.html")}


def test_a_table_sorts_by_mouse_and_keyboard(site: Path, page: Any) -> None:
    """Numbers start with the largest, empty cells stay below, and the heading says how it is sorted."""
    page.goto((site / "papers/toy.html").as_uri())
    table = "#toy-paper-1 .published-layout"
    assert names(page, table) == ["low", "high", "hostile"]
    page.get_by_label("only what was run").uncheck()
    acc = page.locator(f"{table} thead tr:last-child th").nth(2)
    acc.locator("button").click()
    assert acc.get_attribute("aria-sort") == "descending"
    assert names(page, table) == ["low", "high", "hostile", "never"]
    acc.locator("button").focus()
    page.keyboard.press("Enter")
    assert acc.get_attribute("aria-sort") == "ascending"
    assert names(page, table) == ["high", "low", "hostile", "never"]
    method = page.locator(f"{table} thead tr:last-child th").first
    method.locator("button").press("Space")
    assert method.get_attribute("aria-sort") == "ascending" and acc.get_attribute("aria-sort") is None
    assert names(page, table)[1:] == ["high", "low", "never"]


def test_what_was_not_run_is_hidden_until_it_is_asked_for(site: Path, page: Any) -> None:
    """A row, a data set and a table; with the keyboard."""
    page.goto((site / "papers/toy.html").as_uri())
    hidden = [page.get_by_role("rowheader", name="never").first, page.locator("#toy-paper-2")]
    hidden += [page.locator("#toy-paper-1 th[scope=colgroup]", has_text="B")]
    assert not any(part.is_visible() for part in hidden)
    assert page.get_by_text("Not run: all of B; the row never.").is_visible()
    assert page.get_by_text("No runs yet of table 2.").is_visible()
    page.get_by_label("only what was run").press("Space")
    assert all(part.is_visible() for part in hidden)
    assert not page.get_by_text("No runs yet of table 2.").is_visible()


def test_a_cell_says_ours_published_difference_and_status_and_links_to_its_runs(site: Path, page: Any) -> None:
    page.goto((site / "papers/toy.html").as_uri())
    low, high = (page.locator("#toy-paper-1 .cell").nth(number) for number in (0, 4))
    assert " ".join(low.inner_text().split()) == "50.00 ± 25.41 (2) paper 50.0 Δ +0.0, ± 44.02 runs 1 2"
    assert " ".join(high.inner_text().split()) == "9.50 (1 of 2) paper 50.0 Δ -40.5"
    high.get_by_role("link").click()
    assert page.locator("h1").inner_text() == "rscfed on digits, seed 1"
    assert page.get_by_text("toy, table 1").is_visible()
    shown = [title.strip() for title in page.locator("figcaption").all_inner_texts()]
    assert shown[0] == "Accuracy (%)" and any(title.startswith("Coverage") for title in shown)
    assert page.locator(".chart svg[role=img]").count() == len(shown) == 6
    assert "server" in page.locator(".chart.paper").inner_text()


def test_runs_are_filtered_by_text_and_scale(site: Path, page: Any) -> None:
    page.goto((site / "runs.html").as_uri())
    page.get_by_label("Show only").focus()
    page.keyboard.type("HIGH digits")
    assert names(page, "#runs-table") == ["rscfed"] * 4
    assert page.locator("[data-found]").inner_text() == "4 rows"
    page.get_by_label("Scale").select_option("laptop")
    assert names(page, "#runs-table") == ["rscfed"] * 3
    page.get_by_label("Show only").fill("")
    assert len(names(page, "#runs-table")) == 9


def test_runs_of_a_row_stand_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    """Whatever their ids are."""
    own = suite(scales={"paper": {"seeds": list(range(1, 13)), "compare": True}})
    view = run(own, "paper", tmp_path, {"low": [50.0] * 12, "high": [60.0] * 12})
    page = render([view], find_runs(tmp_path))["runs.html"]
    seeds = re.findall(r'</span>\s*</td>\s*<td class="number" data-value="(\d+)">', page)
    assert [int(seed) for seed in seeds] == 2 * list(range(1, 13))


def test_the_leaderboard_compares_rows_and_says_what_they_cost(site: Path, page: Any) -> None:
    """Sorted by the mean, in words instead of names of columns."""
    page.goto((site / "index.html").as_uri())
    table = "#setting-laptop-1"
    assert names(page, table) == ["high", "low (reference)", "hostile"]
    heads = [text.strip() for text in page.locator(f"{table} thead th").all_inner_texts()]
    assert heads == ["method", "accuracy, %", "seeds", "Δ", "simultaneous", "p (Holm)", "rank"]
    best = page.locator(f"{table} tbody tr").first.locator("td").all_inner_texts()
    assert best[:3] == ["71.00 ± 2.48", "3", "+21.00 ± 4.30"]
    assert page.locator(f"{table} tbody .ours").count() == 0  # the setting was not admitted
    page.get_by_text("All columns and costs").first.click()
    heads = [text.strip() for text in page.locator(f"{table}-all thead th").all_inner_texts()]
    assert {"accuracy, %", "± 95 %", "± 95 %, simultaneous", "p (sign flips)"} <= set(heads)
    cells = page.locator(f"{table}-all tbody tr").first.locator("td").all_inner_texts()
    best = dict(zip(heads[1:], cells, strict=True))
    assert (best["accuracy, %"], best["seeds"]) == ("71.00", "3")
    assert "failed seeds" not in best  # nothing has failed, so there is no column of zeros
    assert page.locator(".overview figcaption").all_inner_texts() == ["One: A, points above low"]
    assert names(page, f"{table}-cost") == ["high", "low", "hostile"]
    assert "rounds" in page.locator(f"{table}-cost thead").inner_text()
    assert page.get_by_text("Not ranked: ").is_visible()
    assert page.get_by_text("scale laptop").first.is_visible()


def test_texts_of_records_stay_texts(site: Path, page: Any) -> None:
    """They are shown letter by letter, and no element comes from them; charts show them, too."""
    failed = next(f for f in site.glob("runs/fedirm-*.html") if "Error" in f.read_text())
    for file in (site / "index.html", site / "runs.html", site / "papers/toy.html", site / "papers/board.html", failed):
        page.goto(file.as_uri())
        assert page.locator("img, main script").count() == 0, file
        assert HOSTILE in page.locator("body").inner_text() or HOSTILE in page.content(), file
        assert page.get_by_text(HOSTILE, exact=False).count() > 0, file
    assert page.locator("pre").first.inner_text() == HOSTILE
    page.goto((site / "index.html").as_uri())
    assert page.locator("svg text", has_text="<script>").count() > 0


def test_dark_and_light_are_both_readable(site: Path, page: Any) -> None:
    """Text and curves keep a contrast of 4.5 (3 for curves) to the page."""
    page.goto((site / "papers/toy.html").as_uri())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        look = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
        back = page.evaluate(look, "--page")
        assert (luminance(back) > 0.5) == (scheme == "light")
        for name, least in [
            ("--ink", 7.0),
            ("--soft", 4.5),
            ("--link", 4.5),
            *((f"--series-{n}", 3.0) for n in range(10)),
        ]:
            assert contrast(page.evaluate(look, name), back) >= least, (scheme, name)
        for name in ("good", "fair", "bad"):
            assert contrast(page.evaluate(look, f"--{name}"), page.evaluate(look, f"--{name}-back")) >= 4.5, name


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_command_makes_a_site_and_leaves_other_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Pages of runs that are gone go with them."""
    monkeypatch.chdir(tmp_path)
    view = run(suite(), "paper", Path("results"), {"low": [50.0]})
    Path("toy.yaml").write_text(json.dumps(view.suite.spec))
    assert main(["site", "--papers", "toy.yaml"]) == 0 and not list(Path("site/runs").glob("*"))
    assert 'href="../runs/' not in Path("site/papers/toy.html").read_text()
    capsys.readouterr()
    assert main(["site", "--papers", "toy.yaml", "--runs"]) == 0
    assert capsys.readouterr().out == "wrote site/index.html\n"
    (made,) = Path("site/runs").glob("*.html")
    assert Path("site/tables/toy-paper.tex").is_file() and "scale paper" in made.read_text()
    shutil.rmtree(next(Path("results/runs").glob("*")))
    assert main(["site", "--papers", "toy.yaml", "--runs"]) == 0 and not made.exists()
    assert main(["site", "--out", "results"]) == 2 and not Path("results", MARK).exists()
    assert "--out results: contains files that are not such a site" in capsys.readouterr().err
    Path("results/runs/broken").mkdir(parents=True)
    Path("results/runs/broken/record.json").write_text("{")
    assert main(["site", "--papers", "toy.yaml"]) == 2
    assert "results/runs/broken/record.json: cannot be read" in capsys.readouterr().err


def test_the_columns_of_a_boards_latex_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    board = suite(ranked=True, scales={"laptop": {"seeds": [1, 2], "note": "small"}})
    spec = {**board.spec, "tables": {1: {**board.spec["tables"][1], "metrics": ["acc"]}}}
    run(Suite(spec), "laptop", Path("results"), {"low": [48.0, 52.0], "high": [70.0, 71.0]})
    Path("toy.yaml").write_text(json.dumps(spec))
    board_file = Path("site/tables/toy-laptop-leaderboard.tex")
    assert main(["site", "--papers", "toy.yaml"]) == 0 and "AUC" not in board_file.read_text()
    assert main(["site", "--papers", "toy.yaml", "--metrics", "acc,auc"]) == 0
    text = board_file.read_text()
    assert "& AUC \\\\" in text and r"high & 70.50 $\pm$ 6.35 (2)" in text and r"90.00 $\pm$ 0.00 (2)" in text
    assert main(["site", "--papers", "toy.yaml", "--metrics", "acuracy"]) == 2
    assert "unknown metric 'acuracy'" in capsys.readouterr().err


def test_values_that_tell_rows_apart_stand_under_their_own_names(tmp_path: Path) -> None:
    """Also where a row has only the second of two columns."""
    rows = [{"method": "low", "M": 5, "K": 1}, {"method": "low", "K": 2}, {"method": "high", "M": 6, "K": 3}]
    spec = suite().spec
    own = Suite({**spec, "tables": {1: {**spec["tables"][1], "rows": rows, "reference": ""}}})
    page = render([run(own, "paper", tmp_path, {"high": [50.0]})], {})["papers/toy.html"]
    told = [" ".join(text.split()) for text in re.findall(r'<small class="keys">(.*?)</small>', page, re.DOTALL)]
    assert told == ["M 5, K 1", "K 2", "M 6, K 3"]


def test_a_papers_page_has_what_other_groups_report(tmp_path: Path) -> None:
    """As the written tables have it, below all scales."""
    feddb = load("feddb")
    view = run(feddb, "paper", tmp_path, {})
    text = render([view], {})["papers/feddb.html"]
    assert text.index("What other groups report for FedRGD") > text.index('id="scale-paper"')
    assert re.search(r"<th scope=\"row\">FedLoKe \(CIKM 2023\), table 1</th>\s*<td>SVHN</td>", text)
    assert "What other groups report for FedRGD" in tables.exports(feddb, view.tables)[".md"]
    assert "other groups" not in render([run(suite(), "paper", tmp_path, {})], {})["papers/toy.html"]


def test_points_are_filled_hollow_or_grey_as_in_the_picture_of_the_board() -> None:
    """And say in words what they show; a long name stands in several lines."""
    name = "A method whose name is longer than its margin"
    lines = [("all", 9.0, 1.0, "bound"), (name, 5.0, 1.0, "told apart"), ("other", -1.0, None, "not told apart")]
    made = Charts().differences(lines, "One", "points").svg
    fills = re.findall(r'<use [^>]*style="(fill: [^;"]+)', made)
    assert fills == ["fill: var(--soft)", "fill: var(--series-0)"]  # the third has an edge alone
    assert f"all +9.00, bound; {name} +5.00, told apart; other -1.00, not told apart" in made
    assert all(f">{part}</text>" in made for part in fill(name, 20).splitlines())


def test_a_loss_has_a_gap_where_it_changes_its_meaning() -> None:
    """At the end of the warm-up; an accuracy goes through."""
    rows = [{"round": n, "loss": 1.0, "acc": 1.0, **({"warmup": True} if n < 2 else {})} for n in range(5)]
    curve = Curve(rows, [], 1)
    drawn = [Charts().curves({"run": curve}, column, "round", column).svg for column in ("loss", "acc")]
    assert ["warm-up ends: another loss" in one for one in drawn] == [True, False]
    own = Curve([{**row, "warmup": False} for row in rows], [], 1)
    assert "warm-up ends" not in Charts().curves({"run": own}, "loss", "round", "loss").svg


def test_a_run_with_a_confusion_matrix_shows_it(tmp_path: Path) -> None:
    """In percent of each class; one without has no such section."""
    view = run(suite(), "paper", tmp_path, {"low": [50.0]})
    key = next(iter(find_runs(tmp_path)))
    found = find_runs(tmp_path)[key]
    assert "<h2>Classes</h2>" not in render([view], {key: found}, runs=True)[found.page]
    found.record["confusion"] = ["6 2", "1 1"]
    text = render([view], {key: found}, runs=True)[found.page]
    assert (
        "<h2>Classes</h2>" in text and "class 1 has the lowest accuracy, 50.0 percent" in text and ">75</text>" in text
    )


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("acc", 12.345, "12.35"),
        ("p", 0.0012, "0.0012"),
        ("p_holm", 0.0552, "0.055"),
        ("n", 3, "3"),
        ("bytes_up", 6.9e9, "6.90 GB"),
        ("seconds", 12.3, "12.30 s"),
        ("seconds", 3725.2, "1:02:05"),
        ("bound", True, "yes"),
        ("x", float("nan"), ""),
        ("x", None, ""),
        ("x", "text", "text"),
    ],
)
def test_values_as_people_read_them(name: str, value: Any, shown: str) -> None:
    assert value_text(name, value) == shown
