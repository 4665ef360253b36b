"""The published layout: what stands where, what is folded away, and that no text is taken for markup."""

import re
from typing import Any

from benchmark.report.tables import Page, render
from benchmark.runs.states import RunState
from benchmark.suites.suite import Suite

HOSTILE = r"a|b_c & 5% \input{x} $\frac ~^#"


def suite() -> Suite:
    """Two data sets, three metrics' worth of columns, and two rows of one method that a column tells apart."""
    return Suite(
        {
            "paper": "toy",
            "title": "A toy",
            "published": "toy.csv",
            "report": "best",
            "base": {"set": {"data": "digits", "rounds": 5}},
            "datasets": {"A": {}, "B": {"set": {"data.num_clients": 7}}},
            "labels": {"mine": {"method": "fedavg"}, "other": {"method": "rscfed"}, HOSTILE: {"method": "fedirm"}},
            "tables": {
                1: {
                    "title": "One",
                    "datasets": ["A", "B"],
                    "metrics": ["acc", "auc"],
                    "rows": [
                        {"method": "mine", "net_size": "s", "split": "iid"},
                        {"method": "mine", "net_size": "l", "split": "iid", "set": {"rounds": 6}},
                        {"method": "other", "net_size": "s", "split": "iid"},
                        {"method": HOSTILE, "net_size": "s", "split": "iid"},
                    ],
                }
            },
            "scales": {"paper": {"seeds": [1, 2], "compare": True}, "quick": {"seeds": [1, 2]}},
        }
    )


def rendered(values: dict[tuple[str, str, str], float], scale: str = "paper") -> Page:
    """The table with both seeds of these rows, by data set, method and size."""
    toy = suite()
    plan = toy.plan(scale)
    runs = {key: RunState("missing", None) for key in plan.runs}
    for row in toy.rows:
        value = values.get((row.dataset, row.method, row.columns["net_size"]))
        if value is not None:
            reading = {"acc": value, "auc": 90.0}
            record: Any = {"best": reading, "final": reading, "last_k_mean": reading, "code_version": "abc"}
            record["environment"] = {"cpu": "c", "cores": 1, "threads": 1}
            runs |= {plan.run(row, seed).id: RunState("complete", record) for seed in (1, 2)}
    published = {row.key("acc"): "50.0" for row in toy.rows}
    plan.found = runs
    return render(toy, plan, published)[0]


def test_methods_are_rows_and_data_sets_with_metrics_are_columns() -> None:
    """A column with one value in all rows is a fact below; only what tells rows apart stays."""
    table = rendered({("A", "mine", "s"): 51.0})
    assert table.places == [("A", "acc"), ("A", "auc")]
    assert list(table.rows) == [("mine", "s"), ("mine", "l"), ("other", "s"), (HOSTILE, "s")]
    assert [table.rows["mine", "s"][place]["ours"] for place in table.places] == [51.0, 90.0]
    assert "| method   | net size   | A acc" in table.markdown
    assert table.facts["split"] == "iid" and "net size" not in table.facts
    assert len(table.frame) == 16


def test_what_was_not_run_is_one_sentence() -> None:
    """Rows of one method are told apart in it; the cells that are left keep their published values."""
    table = rendered({("A", "mine", "s"): 51.0, ("A", "other", "s"): 40.0})
    text = table.markdown
    assert "Not run: all of B; the rows mine l, a|b" in text and "B acc" not in text
    assert "| 51.00 ± 0.00 (2)<br>50.0 (+1.0, ± 0.00) " in text and "<br>50.0 (-10.0, ± 0.00) " in text
    assert "Open: " not in text  # no control, so no lead is printed
    both = rendered({("A", "mine", "s"): 51.0, ("B", "other", "s"): 40.0})
    assert "| –<br>50.0 " in both.markdown and "not available" not in both.markdown
    full = {(d, m, s): 50.0 for d in "AB" for m, s in (("mine", "s"), ("mine", "l"), ("other", "s"), (HOSTILE, "s"))}
    assert "Not run" not in rendered(full).markdown


def test_a_terminal_shows_a_column_per_data_set() -> None:
    """Accuracy and interval; published values only in the paper's protocol; no markup, no line that is too wide."""
    found = {("A", "mine", "s"): 51.0, ("B", "other", "s"): 40.0}
    paper, quick = rendered(found).terminal, rendered(found, "quick").terminal
    assert "51.0 ± 0.0 (50.0)" in paper and "in brackets the" in paper
    assert "51.0 ± 0.0 " in quick and "50.0" not in quick and "published" not in quick
    head, row = (next(line for line in quick.splitlines() if line.startswith(name)) for name in ("method", "mine"))
    assert "digits (as A)" in head and "auc" not in quick and "90.0" not in row
    assert "<" not in quick and "|" not in quick and "Scale quick" in quick
    assert max(map(len, quick.splitlines())) <= 100
    assert "Nothing of this table has been run" in rendered({}).terminal


def test_data_sets_that_a_scale_runs_as_one_share_a_column() -> None:
    found = {(name, "mine", "s"): 51.0 for name in "AB"} | {(name, "other", "s"): 40.0 for name in "AB"}
    quick = rendered(found, "quick").terminal
    assert "digits (as A)" in quick and "digits (as B)" in quick
    (row,) = (line for line in quick.splitlines() if line.startswith("other"))
    assert row.count("40.0") == 1
    apart = rendered({**found, ("B", "other", "s"): 41.0}, "quick").terminal
    (row,) = (line for line in apart.splitlines() if line.startswith("other"))
    assert "40.0" in row and "41.0" in row


def test_latex_escapes_everything_and_says_the_scale() -> None:
    table = rendered({("A", HOSTILE, "s"): 51.0, ("A", "mine", "l"): 49.0}, "quick")
    text = table.latex
    assert r"\toprule" in text and r"\bottomrule" in text and "digits (as A) acc" in text
    assert r"51.00 $\pm$ 0.00 (2) [50.0]" in text and "% scale: quick (own protocol)\n" in text
    assert r"a$|$b\_c \& 5\% \textbackslash{}input\{x\} \$\textbackslash{}frac" in text and r"\input" not in text
    assert not re.search(r"[^\x00-\x7f]", re.sub("(?m)^%.*$", "", text))
    assert rendered({}).latex.startswith("% Table 1: One\n") and "tabular" not in rendered({}).latex


def test_readings_stand_below_with_two_decimals() -> None:
    heads, _, line = rendered({("A", "mine", "s"): 51.0}).markdown.partition("readings</summary>")[2].split("\n")[2:5]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in (heads, line)]
    read = ("best round", "last round", "mean of the last 5 rounds or 6 rounds")
    assert dict(zip(*cells, strict=True)) == {"method": "mine", "net size": "s", "data set": "A"} | dict.fromkeys(
        read, "51.00"
    )
