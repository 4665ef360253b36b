"""The leaderboard: from planned runs and records to lines that say who is ahead, and by how much."""

import json
import re
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
    assert (first.dataset, second.dataset, first.reference, first.bounds) == ("A", "B", "base", ("bound",))
    good, bad = first.lines.loc["good"], first.lines.loc["bad"]
    assert good["difference"] == pytest.approx(5.05)
    assert good["difference_ci95"] < 1 < good["ci95"]  # what seeds share is in no difference
    assert good["p_holm"] < 0.01 < bad["p_holm"]
    assert (good["rank"], good["above"]) == (1.0, 1.0)
    assert first.lines.loc["bound", "bound"] and not good["bound"]
    assert not leaderboard.told_apart(first, "bound") and pd.isna(first.lines.loc["bound", "p"])
    assert second.lines.loc["bad", "n"] == 3 and second.lines.loc["good", "rank"] == 1.0
    assert second.lines["rank"].drop(index="bound").sum() == 1 + 2 + 3  # over the three seeds that all have
    assert first.lines["rise"].isna().all() and first.lines["converged"].all()  # no evaluation in the last quarter
    assert first.scores["bound"].mean() == pytest.approx(92.0)
    assert good["last_k_mean"] == pytest.approx(good["mean"] - 0.5)
    assert good["last_k_ci95"] == pytest.approx(good["ci95"])


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
    page = leaderboard.page(suite, plan, [first, second])
    assert page.count("Not ranked") == 1 and "7.2 points" in page
    told = leaderboard.brief(first, "good")  # in a terminal
    assert "Not ranked: the setting has not passed the test of admission: all labels are worth 7.2" in told
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
    (told,) = leaderboard.interim(suite, plan, [first, second])
    assert "3 to 4 of the 4 seeds" in told and told in leaderboard.page(suite, plan, [first, second])


def test_a_row_that_still_rises_is_not_called_worse(made):
    """Nor is the reference; but a row that rises may be called better. Here ``bad`` is clearly below."""
    suite, plan, _ = made
    for name in "AB":
        put(plan, f"{name}/bad", {seed: complete(50.0 + ROUGH[seed] + 0.1 * seed) for seed in range(4)})

    def settings(**gains):
        """After the runs of these methods have gained so many points over their last quarter."""
        for row in suite.rows:
            gain = gains.get(row.method, 0.0)
            rows = [{"round": number, "acc": 40 + gain * number / 25} for number in range(4, 100, 5)]
            for key in plan.of_row[row.full_name].values():
                write_rows(plan, key, rows)
        return leaderboard.settings(suite, plan)

    first, _ = found = settings(good=1.5, bad=0.9)
    assert first.lines.loc[["good", "bad", "base"], "rise"].to_list() == pytest.approx([1.5, 0.9, 0.0])
    assert leaderboard.told_apart(first, "good") and leaderboard.told_apart(first, "bad")
    page = leaderboard.page(suite, plan, found)
    assert [row.split("|")[1].strip() for row in page.splitlines() if ", not converged |" in row] == ["good", "good"]
    first, _ = settings(good=1.5, bad=1.1)
    assert leaderboard.told_apart(first, "good") and not leaderboard.told_apart(first, "bad")
    first, _ = settings(good=1.5, base=1.1)
    assert not leaderboard.told_apart(first, "good") and leaderboard.told_apart(first, "bad")


def test_the_page_makes_nothing_bold_that_noise_explains(made):
    suite, plan, found = made
    page = leaderboard.page(suite, plan, found)
    bold = [line for line in page.splitlines() if "| **" in line]
    assert [line.split("|")[1].strip() for line in bold] == ["good", "good"]
    heads = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| method ")]
    assert heads == ["A", "B"]
    assert "31 of 32 complete" in page
    assert "mean of the last 12 rounds" in page and "| 66.55 ± " in page
    assert "| bad" in page and "1 of 4" not in page.split("What it costs")[0]
    assert "| < 0.001 " in page and "| 0.000 " not in page


def test_what_the_other_rows_take_back_is_not_bold(made):
    """Alone the difference would be clear: its own interval leaves out zero, and p is 0.04."""
    suite, plan, _ = made
    for method, above in (("bad", (3, 3, 1, 1)), ("good", (3, -3, 3, -3))):
        put(plan, f"A/{method}", {seed: complete(ACCURACY["base"] + ROUGH[seed] + above[seed]) for seed in range(4)})
    found = leaderboard.settings(suite, plan)
    line = found[0].lines.loc["bad"]
    assert line["difference_ci95"] < line["difference"] < line["simultaneous_ci95"]
    assert line["p"] < 0.05 < line["p_holm"]
    assert not leaderboard.told_apart(found[0], "bad")
    page = leaderboard.page(suite, plan, found)
    cells = [cell.strip() for cell in next(row for row in page.splitlines() if row.startswith("| bad ")).split("|")]
    assert cells[4].startswith("+2.00") and cells[5] == f"± {line['simultaneous_ci95']:.2f}"
    assert cells[6:8] == [f"{line['p_holm']:.3f}", "0.125"]  # all four signs alike: 2 of 16


def test_a_row_with_a_failed_run_stands_behind_all_without_one(made):
    """``good`` has failed in seed 0 on A. The mean of its other seeds is the best, and does not place it."""
    suite, plan, _ = made
    put(plan, "A/good", {0: FAILED})
    one, _ = found = leaderboard.settings(suite, plan)
    assert one.lines.loc["good", "mean"] > one.lines.loc["base", "mean"] > one.lines.loc["bad", "mean"]
    assert one.order == ("bound", "base", "bad", "good")
    page = leaderboard.page(suite, plan, found)
    shown = {line.split("|")[1].strip(): line for line in page.partition("| method ")[2].splitlines()[2:6]}
    assert tuple(shown) == one.order and "(3, 1 failed)" in shown["good"] and "**" not in shown["good"]
    assert one.lines.loc["good", "rank"] == pytest.approx((3 + 1 + 1 + 1) / 4)
    latex = leaderboard.latex(suite, plan, [one])
    assert latex.index("bad") < latex.index("good")


def test_a_difference_needs_pairs(made):
    """Many seeds of a row say nothing where the reference has two."""
    suite, plan, _ = made
    put(plan, "A/base", {2: MISSING, 3: MISSING})
    found = leaderboard.settings(suite, plan)[0]
    found.lines.loc["good", "simultaneous_ci95"] = 1.0
    line = found.lines.loc["good"]
    assert (line["n"], line["pairs"]) == (4, 2) and abs(line["difference"]) > line["simultaneous_ci95"]
    assert not leaderboard.told_apart(found, "good")


def test_nothing_is_bold_where_a_run_of_the_reference_has_failed(made):
    suite, plan, found = made
    assert leaderboard.told_apart(found[0], "good")
    put(plan, "A/base", {0: FAILED})
    first, second = leaderboard.settings(suite, plan)
    line = first.lines.loc["good"]
    assert line["pairs"] == 3 and line["difference"] > line["simultaneous_ci95"]
    assert not leaderboard.told_apart(first, "good") and leaderboard.told_apart(second, "good")


def test_without_the_reference_there_is_nothing_to_reach(made):
    suite, plan, _ = made
    for name in "AB":
        put(plan, f"{name}/base", dict.fromkeys(range(4), MISSING))
    found = leaderboard.settings(suite, plan)
    page = leaderboard.page(suite, plan, found)
    assert "| A, no run of base " in page and "nan" not in page
    assert "Too few runs" in leaderboard.brief(found[0], "good")


def test_settings_with_too_few_seeds_are_in_no_picture(made, tmp_path):
    suite, plan, _ = made
    picture = tmp_path / "tables" / "toy-quick-leaderboard.svg"
    assert picture in leaderboard.write(suite, plan, tmp_path, "toy-quick")
    for name in "AB":
        put(plan, f"{name}/good", {2: MISSING, 3: MISSING})
    written = leaderboard.write(suite, plan, tmp_path / "again", "toy-quick")
    assert written and picture.name not in [path.name for path in written]


def test_a_row_stands_beside_the_best_other_one(made):
    """Paired by seed; a row without a seed in common is none."""
    suite, plan, (first, _) = made
    assert "bad to good, the best other row: -6.05" in leaderboard.brief(first, "bad")
    put(plan, "A/bad", {0: MISSING, 1: MISSING})
    put(plan, "A/good", {2: MISSING, 3: MISSING})
    assert "the best other row" not in leaderboard.brief(leaderboard.settings(suite, plan)[0], "bad")


def test_a_table_whose_reference_is_not_run_is_not_compared(made):
    """The page says so; the same table on another data set, and other tables, stay."""
    scales, tables = SPEC["scales"]["quick"] | {"without": {"base": "no reason"}}, SPEC["tables"]["clients"]
    other = tables | {"title": "Another", "reference": "good", "datasets": ["A"]}
    spec = {"scales": {"quick": scales}, "tables": {"clients": tables, "other": other}}
    suite = Suite(SPEC | spec, "toy.yaml")
    _, whole, _ = made
    plan = suite.plan("quick")
    plan.found = {key: whole.found[key] for key in plan.runs}
    found = leaderboard.settings(suite, plan)
    assert [(one.table.number, one.dataset) for one in found] == [("other", "A")]
    page = leaderboard.page(suite, plan, found)
    assert "Not compared: A, B; base, the reference, is not run at this scale." in page
    assert page.count("What it costs") == 1


def test_the_averaged_model_is_compared_and_costs_are_counted_to_what_rounds_reach(made):
    """Its accuracy is above that of every round, so that no round would reach the reference's."""
    suite, plan, _ = made
    suite.report = "averaged"
    for record in (one.record for one in plan.found.values() if one.record):
        record["averaged"] = {"acc": record["final"]["acc"] + 5.0, "rounds": 20}
    first, *_ = leaderboard.settings(suite, plan)
    assert first.lines.loc["base", "mean"] == pytest.approx(ACCURACY["base"] + sum(ROUGH) / 4 + 5.0)
    assert first.lines.loc["base", "goal"] == pytest.approx(ACCURACY["base"] + sum(ROUGH) / 4 - 0.5)


def test_latex_is_bold_where_the_page_is(made):
    """Names stay as they are, and signs are LaTeX's."""
    suite, plan, found = made
    text, page = leaderboard.latex(suite, plan, found), leaderboard.page(suite, plan, found)
    bold = re.findall(r"\\textbf{(.*?) \$\\pm\$", text)
    assert bold == re.findall(r"\| \*\*(\S+) ±", page) and bold
    rows = [line.split("&")[0].strip() for line in text.splitlines() if " & " in line]
    assert rows[1:5] == ["bound", "good", "base", "bad"]
    assert text.count(r"\begin{tabular}") == len(found)


def test_a_control_is_shown_beside_its_row_and_not_ranked(made):
    """It is in no family of tests; the row's difference to it, the paper's rates and the power stand on the page."""
    suite, plan, _ = made
    before = leaderboard.settings(suite, plan)[0]
    suite.tables = (replace(suite.tables[0], controls={"good": "bad"}),)
    one = leaderboard.settings(suite, plan)[0]
    line = one.lines.loc["good"]
    assert line["over_control"] == pytest.approx((one.scores["good"] - one.scores["bad"]).mean())
    assert pd.isna(one.lines.loc["bad", "rank"]) and pd.isna(one.lines.loc["bad", "p"])
    assert line["simultaneous_ci95"] < before.lines.loc["good", "simultaneous_ci95"]
    assert line["found80"] > line["simultaneous_ci95"]
    page = leaderboard.page(suite, plan, [one])
    assert "Δ to its control" in page and "control" in page
