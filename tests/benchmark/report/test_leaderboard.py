"""The leaderboard: from planned runs and records to lines that say who is ahead, and by how much."""

import json
from dataclasses import replace
from math import nan

import pandas as pd
import pytest

from benchmark.config import Runtime
from benchmark.report import leaderboard
from benchmark.runs.states import RunState
from benchmark.suites.suite import Suite, load
from datamodules.common.yaml import dump_yaml, load_yaml

SPEC = load_yaml(
    """
paper: toy
title: A toy
published: null
report: last
ranked: true
base: {set: {data: digits}}
datasets: {A: {set: {data.flip: 0.0}}, B: {set: {data.flip: 0.25}}}
labels:
  {bound: {method: fedavg, rounds: 3}, base: {method: fedavg}, good: {method: fed_consist}, bad: {method: rscfed}}
tables:
  clients:
    {title: Labels at some clients, datasets: [A, B], metrics: [acc], reference: base, bounds: [bound],
     rows: [{method: bound}, {method: base}, {method: good}, {method: bad}]}
scales: {quick: {seeds: [0, 1, 2, 3], note: for the test}}
""",
    "toy",
)
ACCURACY = {"bound": 90.0, "base": 60.0, "good": 65.0, "bad": 59.0}
ROUGH = (0.0, 4.0, -4.0, 8.0)  # of a seed, whatever the method
OWN = {"base": (0, 0, 0, 0), "good": (0.1, -0.1, 0.2, 0), "bad": (3, -3, 3, -3), "bound": (0, 0.1, -0.1, 0)}


MISSING, FAILED = RunState("missing", None), RunState("failed", None)


def record(accuracy):
    return {
        "final": {"acc": accuracy},
        "last_k_mean": {"acc": accuracy - 0.5, "rounds": 10},
        "timing": {"seconds": 100.0},
        "environment": {"cpu": "Some CPU", "cores": 2, "threads": 1},
        "code_version": "abc",
        "client_state_bytes": 2_000_000,
    }


def complete(accuracy):
    return RunState("complete", record(accuracy))


def write_rows(plan, key, rows):
    """Write what a run has evaluated."""
    folder = plan.runs[key].folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def put(plan, row, found):
    """Replace what was found of a row's runs, by seed."""
    plan.found |= {plan.of_row[f"clients/{row}"][seed]: state for seed, state in found.items()}


@pytest.fixture
def made(tmp_path):
    """Suite, plan and settings; seed 3 of ``bad`` on B is missing. Every run gets there in its second row, or never."""
    suite = Suite(SPEC, "toy.yaml", tmp_path)
    suite.admitted.path("quick").parent.mkdir()
    suite.admitted.path("quick").write_text("clients/A: {admitted: true}\nclients/B: {admitted: true}\n")
    plan = suite.plan("quick", runtime=Runtime(results_dir=str(tmp_path / "results")))
    plan.found = {}
    spent = {"bytes_up": 10_000_000, "bytes_down": 20_000_000, "steps": 50, "timing": {"seconds": 2.0}}
    for row in suite.rows:
        for seed, key in plan.of_row[row.full_name].items():
            acc = ACCURACY[row.method] + ROUGH[seed] + OWN[row.method][seed]
            plan.found[key] = complete(acc)
            write_rows(plan, key, [{"round": 1, "acc": acc - 20} | spent, {"round": 4, "acc": acc} | spent])
    put(plan, "B/bad", {3: MISSING})
    return suite, plan, leaderboard.settings(suite, plan)


def test_lines_of_a_setting(made):
    *_, (first, second) = made
    good, bad = first.lines.loc["good"], first.lines.loc["bad"]
    assert good["difference"] == pytest.approx(5.05)
    assert good["difference_ci95"] < 1 < good["ci95"]  # what seeds share is in no difference
    assert good["p_holm"] < 0.01 < bad["p_holm"]
    assert leaderboard.told_apart(first, "good") and not leaderboard.told_apart(first, "bad")
    assert not leaderboard.told_apart(first, "bound") and pd.isna(first.lines.loc["bound", "p"])
    assert second.lines.loc["bad", "n"] == 3 and second.lines.loc["good", "rank"] == 1.0
    assert second.lines["rank"].drop(index="bound").sum() == 1 + 2 + 3  # over the three seeds that all have
    assert "bad to good, the best other row: -6.05" in leaderboard.brief(first, "bad")  # paired by seed
    assert first.lines["rise"].isna().all() and first.lines["converged"].all()  # no evaluation in the last quarter


def test_costs_are_those_of_reaching_the_references_accuracy(made):
    *_, (first, _) = made
    assert first.lines["goal"].unique() == [pytest.approx(62.0)]
    good = first.lines.loc["good"]  # 65.1, 68.9, 61.2 and 73.0: three of them get there
    assert (good["reached"], good["rounds"], good["steps"]) == (3, 5, 50)
    assert (good["bytes_up"], good["seconds"], good["client_state_bytes"]) == (10_000_000, 100.0, 2_000_000)


def test_a_setting_that_is_not_admitted_is_shown_and_not_ranked(made):
    suite, plan, _ = made
    refused = "admitted: false, gap: 7.2, premise: 4.0, rise: {base: 0.1, bound: 0.3}"
    suite.admitted.path("quick").write_text(f"clients/A: {{{refused}}}\nclients/B: {{admitted: true}}\n")
    first, second = leaderboard.settings(suite, plan)
    assert (first.ranked, second.ranked) == (False, True)
    assert first.lines["rank"].isna().all() and first.lines.loc["good", "mean"] == second.lines.loc["good", "mean"]
    assert not leaderboard.told_apart(first, "good") and leaderboard.told_apart(second, "good")
    assert leaderboard.page(suite, plan, [first, second]).count("Not ranked") == 1
    assert "admission: all labels are worth 7.2" in leaderboard.brief(first, "good")  # in a terminal, without links
    suite.admitted.path("quick").write_text(f"clients/A: {{{refused.replace('base: 0.1', 'base: null')}}}\n")
    told = leaderboard.resolved(leaderboard.settings(suite, plan)[0])
    assert "late in the run base's rise is unknown, bound rises by 0.3" in told
    suite.admitted.path("quick").unlink()
    assert "it was not tested" in leaderboard.resolved(leaderboard.settings(suite, plan)[0])


@pytest.mark.parametrize(
    ("changed", "ranked"),
    [
        ({"scales": {"quick": {"seeds": [5, 6, 7]}}}, [True, True]),
        ({"labels": {"good": {"method.lr": 0.5}}}, [True, True]),
        ({"datasets": {"A": {"set": {"data.flip": 0.5}}}}, [False, True]),
        ({"scales": {"quick": {"set": {"data.num_clients": 4}}}}, [False, False]),
        ({"tables": {"clients": {"reference": "good"}}}, [False, False]),
        ({"report": "best"}, [False, False]),
    ],
)
def test_the_verdict_on_a_setting_does_not_hold_for_one_that_a_suite_has_changed(tmp_path, changed, ranked):
    """A row, seeds, or another row's options change nothing that was tested."""
    (tmp_path / "toy.yaml").write_text(dump_yaml(SPEC))
    (tmp_path / "mine.yaml").write_text(dump_yaml({"extends": "toy.yaml", "paper": "mine", **changed}))
    (tmp_path / "admitted").mkdir()
    (tmp_path / "admitted" / "toy-quick.yaml").write_text("clients/A: {admitted: true}\nclients/B: {admitted: true}\n")
    suite = load(str(tmp_path / "mine.yaml"))
    plan = suite.plan("quick", runtime=Runtime(results_dir=str(tmp_path / "results")))
    plan.found = dict.fromkeys(plan.runs, RunState("complete", {**record(50.0), "best": {"acc": 50.0}}))
    assert [one.ranked for one in leaderboard.settings(suite, plan)] == ranked
    suite.admitted.add("quick", {"clients/A": {"admitted": True}})
    assert leaderboard.settings(suite, plan)[0].ranked


def test_a_board_without_the_seeds_that_were_fixed_is_interim_and_others_are_named(made):
    """Seed 3 of ``bad`` on B is missing; on A nothing is, and a seed without any score adds none."""
    suite, plan, (first, second) = made

    def with_seed(seed, factor):
        more = first.scores.loc[[0]].rename({0: seed}) * factor
        return replace(first, scores=pd.concat([first.scores, more]))

    assert leaderboard.interim(suite, plan, [first]) == leaderboard.interim(suite, plan, [with_seed(9, nan)]) == []
    assert leaderboard.interim(suite, plan, [with_seed(8, 1)]) == [
        "**Seeds added**: 8, beside the 4 that were fixed beforehand. Nothing that is bold here is the board's."
    ]
    (told, _) = leaderboard.interim(suite, plan, [replace(first, scores=with_seed(9, 1).scores.drop(0))])
    assert "3 of the 4 seeds" in told, "an added seed is none of those that were fixed"
    (told,) = leaderboard.interim(suite, plan, [first, second])
    assert "3 to 4 of the 4 seeds" in told and told in leaderboard.page(suite, plan, [first, second])


@pytest.mark.parametrize(
    ("rising", "clear"),
    [([], ["good", "bad"]), (["good"], ["good", "bad"]), (["bad"], ["good"]), (["base"], ["bad"])],
)
def test_a_row_that_still_rises_is_not_called_worse(made, rising, clear):
    """Nor is the reference; but a row that rises may be called better. Here ``bad`` is clearly below."""
    suite, plan, _ = made
    put(plan, "A/bad", {seed: complete(50.0 + ROUGH[seed] + 0.1 * seed) for seed in range(4)})
    for row in suite.rows:
        gain = 1.1 if row.method in rising else 0.9
        rows = [{"round": number, "acc": 40 + gain * number / 25} for number in range(4, 100, 5)]
        for key in plan.of_row[row.full_name].values():
            write_rows(plan, key, rows)
    first, _ = leaderboard.settings(suite, plan)
    assert [name for name in ("good", "bad") if leaderboard.told_apart(first, name)] == clear
    page = leaderboard.page(suite, plan, [first])
    assert [row.split("|")[1].strip() for row in page.splitlines() if ", not converged |" in row] == rising


def test_a_row_with_a_failed_run_stands_behind_all_without_one(made):
    """``good`` has failed in seed 0 on A. The mean of its other seeds is the best, and does not place it."""
    suite, plan, _ = made
    put(plan, "A/good", {0: FAILED})
    one, _ = found = leaderboard.settings(suite, plan)
    assert one.lines.loc["good", "mean"] > one.lines.loc["base", "mean"] > one.lines.loc["bad", "mean"]
    assert one.order == ("bound", "base", "bad", "good")
    assert one.lines.loc["good", "rank"] == pytest.approx((3 + 1 + 1 + 1) / 4)
    page = leaderboard.page(suite, plan, found)
    (shown,) = (line for line in page.splitlines() if "(3, 1 failed)" in line)
    assert shown.startswith("| good ") and "**" not in shown


@pytest.mark.parametrize(
    ("lost", "pairs"),
    [
        ({2: MISSING, 3: MISSING}, 2),  # many seeds of a row say nothing where the reference has two
        ({0: FAILED}, 3),
        (dict.fromkeys(range(4), MISSING), 0),
    ],
)
def test_no_row_is_told_apart_from_a_reference_with_few_or_failed_runs(made, lost, pairs):
    suite, plan, (before, _) = made
    assert leaderboard.told_apart(before, "good")
    put(plan, "A/base", lost)
    found = leaderboard.settings(suite, plan)
    found[0].lines["simultaneous_ci95"] = 0.1  # by the interval alone, all rows would be
    assert found[0].lines.loc["good", "pairs"] == pairs and not leaderboard.told_apart(found[0], "good")
    page = leaderboard.page(suite, plan, found)
    assert ("| A, no run of base " in page) is (pairs == 0) and "nan" not in page


def test_settings_with_too_few_seeds_are_in_no_picture(made, tmp_path):
    suite, plan, _ = made
    picture = tmp_path / "tables" / "toy-quick-leaderboard.svg"
    assert picture in leaderboard.write(suite, plan, tmp_path, "toy-quick")
    for name in "AB":
        put(plan, f"{name}/good", {2: MISSING, 3: MISSING})
    written = leaderboard.write(suite, plan, tmp_path / "again", "toy-quick")
    assert written and picture.name not in [path.name for path in written]


def test_runs_that_failed_at_a_papers_rates_are_counted_there(made):
    """The mean is that of the others, and no row with a failed run looks like one that was not run."""
    _, whole, _ = made
    beside = {"clients-paper": {"title": "At its paper's rates", "untuned": "clients"}}
    suite = Suite(SPEC | {"tables": SPEC["tables"] | beside}, "toy.yaml")
    plan = suite.plan("quick", runtime=Runtime(results_dir=str(whole.runs[next(iter(whole.runs))].folder.parents[1])))
    plan.found = {key: whole.found[key] for key in plan.runs}
    lost = {"good": {2: FAILED}, "bad": dict.fromkeys(range(4), FAILED), "base": dict.fromkeys(range(4), MISSING)}
    for method, states in lost.items():
        for seed in range(4):  # the same configurations as in the setting itself, so they get keys of their own
            old = plan.of_row[f"clients-paper/A/{method}"][seed]
            plan.of_row[f"clients-paper/A/{method}"][seed] = key = f"{old} beside"
            plan.runs[key], plan.found[key] = plan.runs[old], states.get(seed, whole.found[old])
    first, _ = found = leaderboard.settings(suite, plan)
    good = first.lines.loc["good"]
    assert good["n"] == 4 and good["untuned"] == pytest.approx((65.1 + 68.9 + 73.0) / 3)
    page = leaderboard.page(suite, plan, found)
    assert "± 9.81 (3, 1 failed)" in page and "| (4 failed)" in page and "nan" not in page


def test_a_reference_that_is_a_rows_control_stays_the_reference(made):
    suite, plan, (before, _) = made
    tables = {"clients": SPEC["tables"]["clients"] | {"controls": {"good": "base"}}}
    other = Suite(SPEC | {"tables": tables}, "toy.yaml", suite.admitted.path("quick").parents[1])
    first, _ = leaderboard.settings(other, plan)
    for column in ("rank", "found80", "simultaneous_ci95"):
        pd.testing.assert_series_equal(first.lines[column], before.lines[column])


def test_other_rounds_than_the_suites_rank_nothing(made):
    suite, *_ = made
    plan = suite.plan("quick", rounds=7, runtime=Runtime(results_dir="results"))
    plan.found = dict.fromkeys(plan.runs, complete(50.0))
    assert not any(one.ranked for one in leaderboard.settings(suite, plan))
