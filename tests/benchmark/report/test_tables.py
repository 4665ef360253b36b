"""Tables: numbers, statuses, honesty about scales, and files that change only with the records."""

import csv
import io
import json
import math
import re

import pytest

from benchmark.config import RunConfig
from benchmark.registry import ClassSpec
from benchmark.report.facts import last_rounds
from benchmark.report.formats import csv_text
from benchmark.report.frame import rounds_of
from benchmark.report.tables import Page, write
from benchmark.runs.states import RunState
from benchmark.suites.schema import on_top
from benchmark.suites.suite import Suite
from datamodules.common.yaml import load_yaml

PUBLISHED = {"low": {"acc": "60.0", "auc": "91.23"}, "high": {"acc": "70.26", "auc": "95.5"}}
SPEC = load_yaml(
    """
paper: toy
title: A toy paper
published: toy.csv
report: best
base: {set: {rounds: 5, last_k: 2, data: digits}}
datasets: {SVHN: {}}
labels: {low: {method: fedavg}, high: {method: rscfed}}
tables:
  4:
    {title: Four, datasets: [SVHN], metrics: [acc, auc], control: low,
     rows: [{method: low, M: 1}, {method: high, M: 1}]}
scales:
  paper: {seeds: [1, 2, 3], compare: true, note: the protocol}
  quick: {seeds: [1, 2, 3], note: not the protocol}
""",
    "toy",
)
HOSTILE = r"a|b_c & 5% \input{x} $\frac ~^#"
ENVIRONMENT = {"cpu": "Some CPU", "cores": 8, "threads": 2, "gpu": None, "devices": 1, "accelerator": "auto"}


def toy(**changes):
    return Suite(on_top(SPEC, changes))


def record(acc, auc=90.0):
    below = {"best": 0, "final": 1, "last_k_mean": 0.5}
    reading = {name: {"acc": acc - less, "auc": auc} for name, less in below.items()}
    return {**reading, "code_version": "abc", "environment": ENVIRONMENT}


def published(suite):
    rows = [(row, metric) for row in suite.rows for metric in PUBLISHED[row.method]]
    return {row.key(metric): PUBLISHED[row.method][metric] for row, metric in rows}


def rendered(scale, accuracies, states={}, suite=None, values=None, seeds=None, auc=90.0):  # noqa: B006
    """The table of runs with these accuracies and states, by label or by label and seed; else they are missing."""
    suite = suite or toy()
    plan = suite.plan(scale, seeds)
    plan.found = {}
    for row in suite.rows:
        for seed, key in plan.of_row.get(row.full_name, {}).items():
            acc = accuracies.get((row.method, seed), accuracies.get(row.method))
            state = states.get((row.method, seed), "missing" if acc is None else "complete")
            plan.found[key] = RunState(state, record(acc, auc) if state == "complete" else None)
    return Page(suite, plan, published(suite) if values is None else values, suite.tables[0])


FULL = {("low", s): 59.0 + s for s in (1, 2, 3)} | {("high", s): 68.0 + 0.5 * s for s in (1, 2, 3)}


def lines(table):
    return {(line["method"], line["metric"]): line for line in csv.DictReader(io.StringIO(csv_text(table.frame)))}


def test_means_intervals_and_the_three_readings():
    table = rendered("paper", FULL)
    low = lines(table)["low", "acc"]
    assert (low["ours"], low["n"], low["published"], low["delta"]) == ("61.0000", "3", "60.0", "1.0000")
    assert float(low["ci95"]) == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4) and low["std"] == "1.0000"
    assert (low["best"], low["last"], low["last_k_mean"]) == ("61.0000", "60.0000", "60.5000")
    assert (low["status"], low["note"], low["effect"]) == ("", "", "")  # it is the control
    assert "| low      | 61.00 ± 2.48 (3)<br>60.0 (+1.0, ± 4.97) " in table.markdown


def test_leads_of_a_table_without_published_values():
    """Paired by seed, and without a verdict; a seed that one of the rows lacks does not count."""
    table = rendered("quick", FULL | {("high", 3): None}, values={})
    high = lines(table)["high", "acc"]
    assert [high[f"effect{name}"] for name in ("", "_n", "_published")] == ["8.2500", "2.0000", ""]
    assert float(high["effect_ci95"]) == pytest.approx(12.7062 * 0.25, abs=1e-3)
    assert "68.75 ± 3.18 (2 of 3)<br>effect +8.25 ± 3.18 " in table.markdown
    assert "Effect: the row minus low, paired" in table.markdown and "Holds" not in table.markdown


def test_with_a_failed_run_of_the_control_the_verdict_is_open():
    high = lines(rendered("paper", FULL, {("low", 2): "failed"}))["high", "acc"]
    assert (high["status"], high["note"]) == ("open", "failed runs of the control")


@pytest.mark.parametrize(
    ("states", "status", "note", "cell"),
    [
        ("complete complete failed", "2 of 3; failed (1); open", "failed runs", "70.00 ± 0.00 (2 of 3)"),
        ("complete outdated failed", "1 of 3; failed (1); outdated (1); open", "failed runs", "70.00 (1 of 3)"),
        ("failed failed missing", "failed (2)", "", "failed (2)"),
        ("complete running stale", "1 of 3; running (1); stale (1); open", "no seed in common", "70.00 (1 of 3)"),
        ("complete missing missing", "1 of 3; open", "no seed in common", "70.00 (1 of 3)"),
    ],
)
def test_a_row_says_what_it_lacks_and_is_not_judged_with_a_failed_seed(states, status, note, cell):
    values = {("high", seed): 70.0 for seed, state in enumerate(states.split(), 1) if state == "complete"}
    table = rendered("paper", values, {("high", seed): state for seed, state in enumerate(states.split(), 1)})
    line = lines(table)["high", "acc"]
    assert (line["status"], line["n"]) == (status, str(len(values)))
    assert line["note"].startswith(note) and bool(line["note"]) is bool(note)
    assert f"| high | {cell}<br>" in " ".join(table.markdown.split())
    assert f"**{len(values)} of 6 runs complete**" in table.markdown
    failed = [key for key, run in table.plan.found.items() if run.state == "failed"]
    assert not failed or f"; failed: {', '.join(failed)}" in table.markdown


def test_a_metric_without_a_value_is_not_called_not_run():
    table = lines(rendered("paper", {"low": 70.0, "high": 70.0}, auc=None))
    assert table["high", "auc"]["status"] == "no value" and table["high", "acc"]["status"] == "not seen"


@pytest.mark.parametrize(
    ("seeds", "done", "note"),
    [([1, 2, 3, 4], [1, 2, 3, 4], "other seeds than the suite's"), ([1, 2, 3, 7], [1, 2, 3], "")],
)
def test_only_the_seeds_of_the_suite_are_judged(seeds, done, note):
    values = {(name, seed): value for seed in done for name, value in (("low", 60.0), ("high", 70.2))}
    line = lines(rendered("paper", values, seeds=seeds))["high", "acc"]
    assert line["note"] == note and line["status"].endswith("open" if note else "smaller")


def test_what_is_not_published_is_said():
    suite = toy()
    values = published(suite)
    del values[suite.rows[1].key("acc")]
    table = rendered("paper", {"low": 70.0, "high": 70.0}, suite=suite, values=values)
    high = lines(table)["high", "acc"]
    assert (high["published"], high["status"]) == ("", "published: none")
    assert "| high | 70.00 ± 0.00 (3)<br>none |" in " ".join(table.markdown.split())


@pytest.mark.parametrize(
    ("rounds", "every", "k", "told"),
    [(200, 5, 10, "10 rounds (2 of them evaluated)"), (4, 3, 10, "4 rounds (2 of them evaluated)")],
)
def test_tables_say_how_many_rounds_the_last_mean_rests_on(rounds, every, k, told):
    """A round counts if it was evaluated: every so many, and the last."""
    config = RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), rounds=rounds, eval_every=every, last_k=k)
    assert last_rounds(config) == told


def test_ranked_tables_without_published_values():
    """Best first, rows with failed runs last."""
    suite = toy(published=None, ranked=True, tables={"4": {"reference": "low", "bounds": ["high"]}})
    page = rendered("quick", {"high": 40.0, "low": 60.0}, suite=suite, values={})
    assert list(dict.fromkeys(page.frame["method"]))[:2] == ["low", "high"] == [keys[0] for keys in page.rows][:2]
    states = {("low", 1): "failed"}  # its other seeds are still above the other row's
    failed = list(rendered("quick", {"high": 40.0, "low": 60.0}, states, suite, {}).frame["method"])
    assert failed.index("high") < failed.index("low")


def test_a_table_of_which_a_scale_has_no_row_says_why(tmp_path):
    without = dict.fromkeys(("low", "high"), "not with\nthis network")
    suite = toy(scales={"quick": {"without": without}})
    table = rendered("quick", {}, suite=suite)
    assert "Nothing of this table has been run." in table.markdown and "precision" not in table.markdown
    assert "not at this scale: low (not with" in table.markdown and table.frame.empty
    assert all(line.startswith("% ") for line in table.latex.strip().splitlines())
    full = rendered("quick", FULL)
    assert len(write(suite, "both", [full, table], tmp_path)) == 3
    assert (tmp_path / "tables/toy-both.csv").read_text() == csv_text(full.frame)


def test_cost_is_counted_from_the_first_round(tmp_path):
    """Rounds between two evaluated ones cost as much as the second."""
    rows = [
        {"round": 1, "acc": 1.0, "bytes_up": 10, "bytes_down": 20, "timing": {"seconds": 2.0}},
        {"round": 3, "acc": 1.0, "bytes_up": 30, "bytes_down": 60, "timing": {"seconds": 1.5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = rounds_of(tmp_path)
    assert list(found["bytes"]) == [30, 90] and list(found["seconds"]) == [4.0, 7.0]


WIDE = load_yaml(
    """
paper: toy
title: A toy
published: toy.csv
report: best
base: {set: {data: digits, rounds: 5}}
datasets: {A: {}, B: {set: {data.num_clients: 7}}}
labels: {mine: {method: fedavg}, other: {method: rscfed}, HOSTILE: {method: fedirm}}
tables:
  1:
    title: One
    datasets: [A, B]
    metrics: [acc, auc]
    rows:
    - {method: mine, net_size: s, split: iid}
    - {method: mine, net_size: l, split: iid, set: {rounds: 6}}
    - {method: other, net_size: s, split: iid}
    - {method: HOSTILE, net_size: s, split: iid}
scales: {paper: {seeds: [1, 2], compare: true}, quick: {seeds: [1, 2]}}
""".replace("HOSTILE", json.dumps(HOSTILE)),
    "toy",
)


def laid_out(accuracies, scale="paper"):
    """The table of two data sets with both seeds of these rows, by data set, method and size."""
    suite = Suite(WIDE)
    plan = suite.plan(scale)
    plan.found = dict.fromkeys(plan.runs, RunState("missing", None))
    for row in suite.rows:
        acc = accuracies.get((row.dataset, row.method, row.columns["net_size"]))
        if acc is not None:
            plan.found |= dict.fromkeys(plan.of_row[row.full_name].values(), RunState("complete", record(acc)))
    return Page(suite, plan, {row.key("acc"): "50.0" for row in suite.rows}, suite.tables[0])


def test_what_was_not_run_is_one_sentence():
    """Rows of one method are told apart in it; the cells that are left keep their published values."""
    table = laid_out({("A", "mine", "s"): 51.0, ("A", "other", "s"): 40.0})
    assert "Not run: all of B; the rows mine l, a|b" in table.markdown and "B acc" not in table.markdown
    both = laid_out({("A", "mine", "s"): 51.0, ("B", "other", "s"): 40.0})
    assert "| –<br>50.0 " in both.markdown and "not available" not in both.markdown


def test_a_terminal_shows_a_column_per_data_set():
    """Accuracy and interval; published values only in the paper's protocol; no markup, no line that is too wide."""
    found = {("A", "mine", "s"): 51.0, ("B", "other", "s"): 40.0}
    paper, quick = laid_out(found).terminal, laid_out(found, "quick").terminal
    assert "51.0 ± 0.0 (50.0)" in paper and "in brackets the" in paper
    assert "51.0 ± 0.0 " in quick and "50.0" not in quick and "published" not in quick and "auc" not in quick
    assert "<" not in quick and "|" not in quick and max(map(len, quick.splitlines())) <= 100
    assert "Nothing of this table has been run" in laid_out({}).terminal


@pytest.mark.parametrize(("other", "shown"), [(40.0, ["40.0"]), (41.0, ["40.0", "41.0"])])
def test_data_sets_that_a_scale_runs_as_one_share_a_column(other, shown):
    found = {("A", "mine", "s"): 51.0, ("B", "mine", "s"): 51.0, ("A", "other", "s"): 40.0, ("B", "other", "s"): other}
    quick = laid_out(found, "quick").terminal
    assert "digits (as A)" in quick and "digits (as B)" in quick
    (row,) = (line for line in quick.splitlines() if line.startswith("other"))
    assert re.findall(r"4\d\.0", row) == shown


def test_latex_escapes_everything_and_says_the_scale():
    text = laid_out({("A", HOSTILE, "s"): 51.0, ("A", "mine", "l"): 49.0}, "quick").latex
    assert r"51.00 $\pm$ 0.00 (2) [50.0]" in text and "% scale: quick (own protocol)\n" in text
    assert r"a$|$b\_c \& 5\% \textbackslash{}input\{x\} \$\textbackslash{}frac" in text and r"\input" not in text
    assert not re.search(r"[^\x00-\x7f]", re.sub("(?m)^%.*$", "", text))
