"""Tables: numbers, statuses, honesty about scales, and files that change only with the records."""

import csv
import io
import json
import math

import pandas as pd
import pytest

from benchmark.config import RunConfig
from benchmark.registry import ClassSpec
from benchmark.report.facts import last_rounds
from benchmark.report.formats import csv_text
from benchmark.report.frame import rounds_of
from benchmark.report.tables import render, write
from benchmark.runs.states import RunState
from benchmark.suites.schema import on_top
from benchmark.suites.suite import Suite

PUBLISHED = {
    "low": {"acc": "60.0", "auc": "91.23"},
    "high": {"acc": "70.26", "auc": "95.5"},
    "gain": {"acc": "10.26"},
}


SPEC = {
    "paper": "toy",
    "title": "A toy paper",
    "published": "toy.csv",
    "report": "best",
    "base": {"set": {"rounds": 5, "last_k": 2, "data": "digits"}},
    "datasets": {"SVHN": {}},
    "labels": {"low": {"method": "fedavg"}, "high": {"method": "rscfed"}, "gain": {"minus": ["high", "low"]}},
    "tables": {
        4: {
            "title": "Four",
            "datasets": ["SVHN"],
            "metrics": ["acc", "auc"],
            "control": "low",
            "rows": [{"method": "low", "M": 1}, {"method": "high", "M": 1}, {"method": "gain", "M": 1}],
        }
    },
    "scales": {
        "paper": {"seeds": [1, 2, 3], "compare": True, "note": "the protocol"},
        "quick": {"seeds": [1, 2, 3], "note": "not the protocol"},
    },
}


def toy(**changes):
    return Suite(on_top(SPEC, changes))


ENVIRONMENT = {"cpu": "Some CPU", "cores": 8, "threads": 2, "gpu": None, "devices": 1, "accelerator": "auto"}


def record(acc, auc=90.0):
    row = {"acc": acc, "auc": auc}
    final, mean = {"acc": acc - 1, "auc": auc}, {"acc": acc - 0.5, "auc": auc}
    return {
        "best": row,
        "final": final,
        "last_k_mean": mean,
        "code_version": "abc",
        "environment": ENVIRONMENT,
    }


def published(suite):
    return {
        row.key(metric): PUBLISHED[row.method][metric]
        for row in suite.rows
        for metric in ("acc", "auc")
        if metric in PUBLISHED[row.method]
    }


def rendered(scale, accuracies, states=None):
    """Table of runs with these accuracies by (label, seed); ``None``: not complete."""
    suite = toy()
    plan = suite.plan(scale)
    runs = {}
    for row in suite.rows[:2]:
        for seed in (1, 2, 3):
            acc = accuracies.get((row.method, seed))
            state = "complete" if acc is not None else (states or {}).get((row.method, seed), "missing")
            runs[plan.run(row, seed).id] = RunState(state, None if acc is None else record(acc))
    plan.found = runs
    return suite, plan, render(suite, plan, published(suite))[0]


FULL = {("low", s): 59.0 + s for s in (1, 2, 3)} | {("high", s): 68.0 + 0.5 * s for s in (1, 2, 3)}


def lines(table):
    return {(line["method"], line["metric"]): line for line in csv.DictReader(io.StringIO(csv_text(table.frame)))}


def test_means_intervals_and_the_three_readings():
    *_, table = rendered("paper", FULL)
    low = lines(table)["low", "acc"]
    assert (low["ours"], low["n"], low["published"], low["delta"]) == ("61.0000", "3", "60.0", "1.0000")
    assert float(low["ci95"]) == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4) and low["std"] == "1.0000"
    assert (low["best"], low["last"], low["last_k_mean"]) == ("61.0000", "60.0000", "60.5000")
    assert lines(table)["low", "auc"]["last"] == ""
    assert len(low["runs"].split()) == 3
    assert "| low      | 61.00 ± 2.48 (3)<br>60.0 (+1.0, ± 4.97) " in table.markdown


def test_a_difference_is_taken_seed_by_seed():
    *_, table = rendered("paper", FULL | {("low", 2): None})
    gain = lines(table)["gain", "acc"]
    assert (gain["ours"], gain["n"]) == ("8.0000", "2")
    assert (
        gain["published"] == "10.26" and gain["delta"] == "-2.2600" and (gain["status"], gain["note"]) == ("2 of 3", "")
    )
    assert len(gain["runs"].split()) == 6


def test_the_intervals_stand_beside_the_printed_values():
    """Effects 8, 7.5 and 7, by hand: 7.5 ± 4.303 x 0.5 / sqrt(3); the prediction has 0.5 sqrt(4/3)."""
    table = rendered("paper", FULL)[2]
    high, scatter = lines(table)["high", "acc"], 4.3027 * 0.5 * math.sqrt(4 / 3)
    assert [
        float(high[name])
        for name in ("prediction", "effect", "effect_ci95", "effect_prediction", "effect_n", "effect_published")
    ] == (pytest.approx([scatter, 8.0, 4.3027 * 0.5 / math.sqrt(3), scatter, 3, 10.26], abs=1e-4))
    assert "69.00 ± 1.24 (3)<br>70.26 (-1.26, ± 2.48)<br>effect +8.00 ± 1.24 (+10.26)<br>holds" in table.markdown
    assert r"69.00 $\pm$ 1.24 (3) [70.26]" in table.latex
    low = lines(table)["low", "acc"]
    assert (low["status"], low["note"], low["effect"]) == ("", "", "")  # it is the control


def test_a_table_without_a_control_has_no_verdicts():
    suite = toy(tables={"4": {"control": ""}})
    plan = suite.plan("paper")
    at = {seed: 70.0 + 0.1 * seed for seed in (1, 2, 3)}
    runs = {key: RunState("complete", record(at[run.config.seed])) for key, run in plan.runs.items()}
    plan.found = runs
    table = render(suite, plan, published(suite))[0]
    assert [lines(table)[name, "acc"]["status"] for name in ("low", "high")] == ["", ""]
    assert "Holds" not in table.markdown and "The table has no control" in table.markdown


def test_a_failed_control_leaves_no_word():
    table = rendered("paper", FULL | {("low", 2): None}, {("low", 2): "failed"})[2]
    high = lines(table)["high", "acc"]
    assert (high["status"], high["note"]) == ("open", "a failed run of the control")
    waiting = lines(rendered("paper", FULL | {("low", 2): None})[2])["high", "acc"]
    assert (waiting["status"], waiting["note"]) == ("open", "fewer than 3 seeds")


@pytest.mark.parametrize(
    ("accuracies", "states", "status", "cell"),
    [
        ([], ["missing"] * 3, "not run", None),
        ([70.0], ["missing", "missing"], "1 of 3", "70.00 (1 of 3)"),
        ([70.0, 70.0], ["failed"], "2 of 3; failed (1)", "70.00 ± 0.00 (2 of 3)"),
        ([70.0], ["outdated", "failed"], "1 of 3; failed (1); outdated (1)", "70.00 (1 of 3)"),
        ([], ["failed", "failed", "missing"], "failed (2)", "failed (2)"),
        ([], ["outdated", "missing", "missing"], "outdated (1)", "outdated (1)"),
        ([70.0], ["running", "stale"], "1 of 3; running (1); stale (1)", "70.00 (1 of 3)"),
    ],
)
def test_a_row_says_what_it_lacks_and_is_not_judged_with_a_failed_seed(accuracies, states, status, cell):
    values = {("high", seed): acc for seed, acc in enumerate(accuracies, 1)}
    found = {("high", seed): state for seed, state in enumerate(states, 1 + len(accuracies))}
    for scale in ("paper", "quick"):
        table = rendered(scale, values, found)[2]
        line = lines(table)["high", "acc"]
        judged = scale == "paper" and bool(accuracies)
        assert line["status"] == status + "; open" * judged
        if scale == "paper":
            bad = {"failed", "outdated"} & set(states)
            assert line["note"] == ("a failed run" if bad else "no seed in common with the control") * judged
        if cell is None:
            assert "Nothing of this table has been run." in table.markdown
        else:
            assert f"| high | {cell}<br>" in " ".join(table.markdown.split())
        assert lines(table)["high", "acc"]["n"] == str(len(accuracies))


def test_a_difference_lacks_what_one_of_its_runs_lacks():
    states = {("high", 2): "running", ("low", 1): "failed"}
    table = lines(rendered("paper", {("high", 1): 70.0}, states)[2])
    assert table["gain", "acc"]["status"] == "failed (1); running (1)"
    assert table["gain", "auc"]["status"] == "failed (1); running (1); published: none"


def test_a_metric_without_a_value_is_not_called_not_run():
    suite = toy()
    plan = suite.plan("paper")
    runs = {key: RunState("complete", record(70.0, auc=None)) for key in plan.runs}
    plan.found = runs
    table = lines(render(suite, plan, published(suite))[0])
    assert table["high", "auc"]["status"] == "no value" and table["high", "acc"]["status"] == "not seen"


@pytest.mark.parametrize(
    ("seeds", "done", "note"),
    [
        ([7, 8, 9], [7, 8, 9], "other seeds than the suite's"),
        ([1, 2, 3, 4], [1, 2, 3, 4], ""),
        ([1, 2, 3, 7], [1, 7], "other seeds than the suite's"),
        ([1, 2, 3, 7], [1, 2, 3], ""),
    ],
)
def test_only_the_seeds_of_the_suite_are_judged(seeds, done, note):
    suite = toy()
    plan = suite.plan("paper", seeds)
    at = {("low", 60.0), ("high", 70.2)}
    values = {
        plan.run(row, seed).id: value for row in suite.rows[:2] for n, value in at if n == row.method for seed in done
    }
    runs = {
        key: RunState("complete", record(values[key])) if key in values else RunState("missing", None)
        for key in plan.runs
    }
    plan.found = runs
    line = lines(render(suite, plan, published(suite))[0])["high", "acc"]
    count = f"{len(done)} of {len(seeds)}" if len(done) < len(seeds) else ""
    word = "open" if note else "smaller"
    assert line["note"] == note and line["status"] == "; ".join(filter(None, (count, word)))


def test_incomplete_and_failed_runs_are_said_aloud():
    _, plan, table = rendered("paper", {("high", 1): 70.0}, {("low", 1): "failed"})
    failed = next(key for key, run in plan.runs.items() if "4/SVHN/low" in run.cells)
    assert f"**1 of 6 runs complete**; failed: {failed}." in table.markdown
    assert "complete**" not in rendered("paper", FULL)[2].markdown


def test_another_scale_is_not_compared_with_the_paper():
    *_, table = rendered("quick", FULL)
    assert "delta" not in table.frame and set(table.frame["status"]) == {"", "published: none"}
    for word in ("Δ", "holds", "status"):
        assert word not in table.markdown
    assert "<sub>60.0</sub>" in table.markdown and "digits (as SVHN)" in table.markdown
    assert "no comparison is meant" in table.markdown
    assert lines(table)["low", "acc"]["data"] == "digits"


def test_published_is_a_number_or_empty():
    """What is not published says so in the status, and in words in the Markdown."""
    suite = toy(tables={"4": {"unpublished": "not available to us"}})
    plan = suite.plan("paper")
    values = published(suite)
    del values[suite.rows[1].key("acc")]
    runs = {key: RunState("complete", record(70.0)) for key in plan.runs}
    plan.found = runs
    table = render(suite, plan, values)[0]
    frame = pd.read_csv(io.StringIO(csv_text(table.frame)))
    assert frame["published"].dtype == float and frame["published"].isna().sum() == 2
    high = lines(table)["high", "acc"]
    assert (high["published"], high["status"]) == ("", "published: not available to us")
    assert "| high | 70.00 ± 0.00 (3)<br>not available to us |" in " ".join(table.markdown.split())
    plan.found = dict.fromkeys(plan.runs, RunState("missing"))
    nothing = render(suite, plan, {suite.rows[0].key("f1"): "1"})[0]
    assert "Nothing of this table has been run.\n\nPublished values: not available to us." in nothing.markdown


def test_pending_rows_and_published_spreads_are_shown():
    suite = toy(labels={"low": {"pending": "needs a method"}})
    values = published(suite) | {suite.rows[1].key("acc std"): "1.5"}
    for scale in ("paper", "quick"):
        plan = suite.plan(scale)
        runs = {key: RunState("complete", record(68.0)) for key in plan.runs}
        plan.found = runs
        table = render(suite, plan, values)[0]
        found = lines(table)
        assert found["low", "acc"]["n"] == found["gain", "acc"]["n"] == "0"
        assert "pending: SVHN low, SVHN gain (needs a method)" in table.markdown
        assert "Not run: the rows low, gain." in table.markdown and "| low" not in table.markdown
        assert (found["high", "acc"]["spread"], found["high", "acc"]["ours"]) == ("1.5", "68.0000")
        assert "70.26 ± 1.5" in table.markdown
        assert "complete**" not in table.markdown
        assert scale == "paper" or found["low", "acc"]["data"] == found["high", "acc"]["data"] == "digits"


@pytest.mark.parametrize(
    ("rounds", "every", "k", "told"),
    [
        (200, 5, 10, "10 rounds (2 of them evaluated)"),
        (101, 5, 3, "3 rounds (2 of them evaluated)"),
        (1, 1, 10, "1 round"),
        (4, 3, 10, "4 rounds (2 of them evaluated)"),
    ],
)
def test_tables_say_how_many_rounds_the_last_mean_rests_on(rounds, every, k, told):
    """A round counts if it was evaluated: every so many, and the last."""
    config = RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), rounds=rounds, eval_every=every, last_k=k)
    assert last_rounds(config) == told


def test_ranked_tables_without_published_values():
    """Best first, rows with failed runs last; there is no column of published values, and no verdict."""
    suite = toy(published=None, ranked=True, tables={"4": {"reference": "low", "bounds": ["high"]}})
    plan = suite.plan("quick")
    at = {"high": 40.0, "low": 60.0}
    runs = {key: RunState("complete", record(at[run.cells[0].split("/")[-1]])) for key, run in plan.runs.items()}
    plan.found = runs
    page = render(suite, plan, suite.published())[0]
    assert list(dict.fromkeys(page.frame["method"]))[:2] == ["low", "high"] == [keys[0] for keys in page.rows][:2]
    assert "published" not in page.frame and "ublished" not in page.markdown
    assert "Bounds, which know more labels than a method may: high." in page.markdown
    low = next(key for key, run in plan.runs.items() if run.cells[0].endswith("low"))
    plan.found = {**runs, low: RunState("failed", None)}  # its other seeds are still above the other row's
    failed = list(render(suite, plan, suite.published())[0].frame["method"])
    assert failed.index("high") < failed.index("low")


def test_a_table_of_which_a_scale_has_no_row_says_why(tmp_path):
    without = dict.fromkeys(("low", "high", "gain"), "not with\nthis network")
    suite = toy(scales={"quick": {"without": without}})
    plan = suite.plan("quick")
    table = render(suite, plan, published(suite))[0]
    assert "Nothing of this table has been run." in table.markdown and "precision" not in table.markdown
    assert "not at this scale: low (not with" in table.markdown and table.frame.empty
    assert all(line.startswith("% ") for line in table.latex.strip().splitlines())
    assert len(write(suite, "quick", [table], tmp_path)) == 3
    write(suite, "both", [rendered("quick", FULL)[2], table], tmp_path)
    assert (tmp_path / "tables/toy-both.csv").read_text() == csv_text(rendered("quick", FULL)[2].frame)


def test_cost_is_counted_from_the_first_round(tmp_path):
    """Rounds between two evaluated ones cost as much as the second."""
    rows = [
        {"round": 1, "acc": 1.0, "bytes_up": 10, "bytes_down": 20, "timing": {"seconds": 2.0}},
        {"round": 3, "acc": 1.0, "bytes_up": 30, "bytes_down": 60, "timing": {"seconds": 1.5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = rounds_of(tmp_path)
    assert list(found["bytes"]) == [30, 90] and list(found["seconds"]) == [4.0, 7.0]
