"""Tuning: what a trial may see, which trials a row asks for, what is chosen, and what is kept of it."""

from dataclasses import replace

import pytest
import yaml

from benchmark.board.tune import all_kept, forget, left, retraced, trial_of, tune
from benchmark.runs import folder
from benchmark.runs.records import read_record
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError, RunError
from run_folders import change, completed
from tuned_suites import SPEC, made_up, toy, with_tuning

POWERS = {float(f"{0.03 * 3**n:.2g}"): n for n in range(-6, 7)}


def power(run):
    """The power of three that a run's rate of 0.03 is multiplied by."""
    return POWERS[run.config.method.init_args["lr"]]


def judged(monkeypatch, scores):
    """Nothing is run: a trial has the accuracy given by its power, ten outside of these; the powers tried, in order."""
    ran = made_up(monkeypatch, lambda run: float(scores.get(power(run), 10)))
    return lambda: [power(run) for run in ran]


def test_a_trial_is_the_whole_run_of_the_row_with_other_rates_and_a_seed_of_its_own(tmp_path, runtime):
    suite = toy(tmp_path)
    plain, teacher = suite.rows
    assert trial_of(suite, "quick", plain, 1, runtime).options == {"method.lr": 0.09}
    exact = replace(plain, options={"method.lr": 0.125})
    assert trial_of(suite, "quick", exact, 0, runtime).options == {"method.lr": 0.125}
    one = trial_of(suite, "quick", teacher, 1, runtime)
    assert one.options == {"method.lr": 0.09, "method.lr_unlabelled": 0.063}  # their ratio stays
    (run,) = one.runs
    assert (run.config.seed, run.config.rounds) == (1000, suite.run(teacher, "quick").config.rounds)
    assert run.config.data.init_args["labelled_holdout"] == 0.5
    assert run.config.method.init_args["lr"] == 0.09 and run.config.method.init_args["warmup_rounds"] == 0


def test_without_a_rate_nothing_is_tuned(tmp_path, runtime):
    suite = with_tuning(tmp_path, rates=["method.nothing"])
    with pytest.raises(ConfigError, match=r"none of method\.nothing has a value to start from"):
        trial_of(suite, "quick", suite.rows[0], 0, runtime)


def test_test_examples_and_seeds_that_may_be_reported_take_no_part(tmp_path, runtime):
    suite = with_tuning(tmp_path, set={})
    with pytest.raises(ConfigError, match=r"scored on test examples: set data\.balanced_holdout or data"):
        trial_of(suite, "quick", suite.rows[0], 0, runtime)
    for seeds, told in {(1000, 1000): r"seeds: twice: 1000", (999,): r"seeds\.0: .* 1000"}.items():
        with pytest.raises(ConfigError, match=rf"scales\.quick\.tuning\.{told}"):
            with_tuning(tmp_path, seeds=list(seeds))


SEVEN = [-3, -2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("scores", "tried", "chosen", "reason"),
    [
        ({0: 50}, SEVEN, 0, ""),
        ({0: 50, -2: 60}, SEVEN, -2, ""),  # two maxima: the higher one
        ({3: 50, 4: 40}, [*SEVEN, 4], 3, ""),
        ({-3: 50, -4: 60}, [*SEVEN, -4, -5], -4, ""),
        ({2: 50, 3: 48}, [*SEVEN, 4], 2, ""),  # tied by a standard error of 5 points: the nearer to the paper
        ({1: 58, 2: 60}, SEVEN, 1, ""),
        ({-1: 60, 1: 59}, SEVEN, -1, ""),  # equally near: the better one
        ({-1: 59, 1: 60}, SEVEN, 1, ""),
        ({-1: 59, 1: 59}, SEVEN, -1, ""),  # and then the lower one
        ({-3: 50, 0: 50, 3: 50}, [*SEVEN, 4, -4], 0, ""),  # both ends, one after the other
        ({-3: 51, 0: 50, 3: 50}, [*SEVEN, -4, 4], 0, ""),  # from the better end
        ({n: 50 + 8 * n for n in range(-1, 6)}, [*SEVEN, 4, 5], 5, "highest of 9 values"),
    ],
)
def test_rates_are_tried_until_the_best_and_its_ties_are_interior(
    tmp_path, runtime, monkeypatch, scores, tried, chosen, reason
):
    """At most nine of them; bounds and references are rows like others, tuned alone or together."""
    ran = judged(monkeypatch, scores)
    suite = toy(tmp_path)
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert ran() == tried and POWERS[made["options"]["method.lr"]] == chosen
    assert made["interior"] is not bool(reason) and reason in made.get("reason", "")
    assert len(made["tried"]) == len(tried)
    assert retraced(suite, "quick", suite.rows[0]) == (made, [], len(tried))


def test_the_choice_reaches_the_row(tmp_path, runtime, monkeypatch):
    """It is used by the row, and by it alone; what was tried is kept with what identifies it, and not run again."""
    suite = toy(tmp_path)
    plain, teacher = suite.rows
    ran = judged(monkeypatch, {1: 50.0})
    made = tune(suite, "quick", [plain], runtime, jobs=1)
    again = toy(tmp_path)
    assert again.run(again.rows[0], "quick").config.method.init_args["lr"] == 0.09
    assert again.run(again.rows[1], "quick").config == suite.run(teacher, "quick").config
    assert tune(again, "quick", [plain], runtime, jobs=1) == made and ran() == SEVEN

    (run,) = trial_of(suite, "quick", plain, 1, runtime).runs
    entry = all_kept(again, "quick", [plain])[plain.full_name][run.id]
    assert (entry["factor"], entry["seed"], entry["accuracy"], entry["held_out"]) == (3.0, 1000, 50.0, 100)
    assert entry["code"] == [read_record(run.folder)["code_version"]]


def test_a_rate_at_which_numbers_are_not_finite_scores_nothing(tmp_path, runtime, monkeypatch):
    suite = toy(tmp_path, {**SPEC, "base": {"set": {**SPEC["base"]["set"], "method.lr": 1e30}}})
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert {one["held_out_accuracy"] for one in made["tried"]} == {0.0} and not made["interior"]


def test_a_trial_is_a_run_per_seed_and_scores_their_mean(tmp_path, runtime, monkeypatch):
    """On all their held-out examples. As long as one of its runs is missing, nothing is chosen for the row."""
    suite = with_tuning(tmp_path, seeds=[1000, 1001])
    scores = {(0, 1000): 80.0, (0, 1001): None}
    ran = made_up(monkeypatch, lambda run: scores.get((power(run), run.config.seed), 20.0))
    with pytest.raises(RunError, match=r"1/Digits/plain x 1 \("):
        tune(suite, "quick", suite.rows[:1], runtime, jobs=1)
    assert len(ran) == 14 and suite.choices("quick") == {}
    assert suite.tuned.own("quick")["1/Digits/plain"].keys() == {"trials"}
    scores[0, 1001] = 60.0
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert len(ran) == 15
    assert [one["held_out_accuracy"] for one in made["tried"]] == [20.0, 20.0, 20.0, 70.0, 20.0, 20.0, 20.0]
    assert made["seeds"] == [1000, 1001] and made["held_out_images"] == 200
    assert made["margin"] == pytest.approx(100 * (0.7 * 0.3 / 200) ** 0.5, abs=0.005)


def test_the_reading_that_the_suite_reports_is_the_score(tmp_path, runtime):
    base = {"set": {**SPEC["base"]["set"], "average_last": 2}}
    suite = toy(tmp_path, {**SPEC, "report": "averaged", "base": base})
    for n in SEVEN:
        last, averaged = {-3: (90.0, 10.0), 0: (20.0, 50.0)}.get(n, (20.0, 20.0))
        (run,) = trial_of(suite, "quick", suite.rows[0], n, runtime).runs
        completed(run, last, averaged={"rounds": 2, "acc": averaged}, test_images=100)
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert made["options"] == {"method.lr": 0.03} and made["tried"][0]["held_out_accuracy"] == 10.0


def test_a_trial_that_went_on_with_edited_code_has_no_score(tmp_path, runtime, monkeypatch):
    suite = toy(tmp_path)

    def continued(run):
        path = completed(run, 50.0, test_images=100)
        change(path, lambda record: record["environment"]["revisions"].insert(0, "method 0, framework 1"))
        return path

    monkeypatch.setattr("benchmark.launch.run.fit", continued)
    with pytest.raises(RunError, match="no score of"):
        tune(suite, "quick", suite.rows[:1], runtime, jobs=1)


def test_what_is_forgotten_is_run_again_and_stays_counted(tmp_path, runtime, monkeypatch):
    """That of this row alone, also where it is outside today's rule."""
    suite = toy(tmp_path)
    plain, teacher = suite.rows
    scores = {0: 30.0}
    judged(monkeypatch, scores)
    tune(suite, "quick", suite.rows, runtime, jobs=1)
    scores[0] = 40.0
    kept = all_kept(suite, "quick", [plain])[plain.full_name] | {"another": {"accuracy": 99.0, "revision": None}}
    suite.tuned.add("quick", {plain.full_name: {"trials": kept}})
    folder.discard(left(suite, "quick", [plain], runtime))
    forget(suite, "quick", [plain])
    made = tune(suite, "quick", suite.rows, runtime, jobs=1)
    best = [max(one["held_out_accuracy"] for one in made[row.full_name]["tried"]) for row in (plain, teacher)]
    assert best == [40.0, 30.0] and retraced(suite, "quick", plain)[1:] == ([], 8)


def test_a_suite_of_the_installed_package_is_not_tuned(tmp_path, runtime, monkeypatch):
    suite = toy(tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match=r"suite toy is part of an installed package .* `extends: toy` and tune that"):
        tune(suite, "quick", suite.rows, runtime, jobs=1)
    assert not suite.folder.exists() and not (tmp_path / "results").exists()


def test_a_suite_that_extends_another_keeps_its_own_choices_alone(tmp_path, runtime, monkeypatch):
    """The other suite's choices stay in that one's file, and count here as long as nothing of its own does."""
    base, folder = toy(tmp_path), tmp_path / "suites"
    chosen = {"1/Digits/plain": {"options": {"method.lr": 0.1}}, "1/Digits/teacher": {"options": {"method.lr": 0.2}}}
    base.tuned.add("quick", chosen)
    mine = Suite({**SPEC, "paper": "mine"}, "mine.yaml", folder, base)
    assert mine.choices("quick") == chosen
    judged(monkeypatch, {0: 50.0})
    tune(mine, "quick", mine.rows[:1], runtime, jobs=1)
    assert list(yaml.safe_load(mine.tuned.path("quick").read_text())) == ["1/Digits/plain"]
    now = Suite({**SPEC, "paper": "mine"}, "mine.yaml", folder, base).choices("quick")
    assert [one["options"]["method.lr"] for one in now.values()] == [0.03, 0.2]


def test_a_row_keeps_its_choice_until_tuning_it_again_has_ended(tmp_path, runtime, monkeypatch):
    """Its own one and one that it inherits: what is interrupted puts no row at its paper's rate."""
    base, folder = toy(tmp_path), tmp_path / "suites"
    chosen = {"options": {"method.lr": 0.1}}
    base.tuned.add("quick", {"1/Digits/plain": chosen})
    mine = Suite({**SPEC, "paper": "mine"}, "mine.yaml", folder, base)
    made_up(monkeypatch, lambda run: None if power(run) == 0 else 50.0)
    for suite in (mine, base):
        with pytest.raises(RunError, match="no score"):
            tune(suite, "quick", suite.rows[:1], runtime, jobs=1)
        assert len(all_kept(suite, "quick", suite.rows[:1])["1/Digits/plain"]) == 6
        assert suite.choices("quick")["1/Digits/plain"]["options"] == chosen["options"]
        assert suite.run(suite.rows[0], "quick").config.method.init_args["lr"] == 0.1
    forget(base, "quick", base.rows[:1])
    assert base.choices("quick")["1/Digits/plain"]["options"] == chosen["options"]


@pytest.mark.parametrize("part", ["rounds", "data.beta", "model", "rule"])
def test_a_choice_is_not_inherited_by_another_setting(tmp_path, part):
    """Nor where the rule of tuning is another one; a row that stays alike keeps it."""
    base = toy(tmp_path)
    chosen = {"1/Digits/plain": {"options": {"method.lr": 0.1}}, "1/Digits/teacher": {"options": {"method.lr": 0.2}}}
    base.tuned.add("quick", chosen)
    spec, kept = {**SPEC, "paper": "mine"}, {"1/Digits/teacher": chosen["1/Digits/teacher"]}
    if part == "rule":
        spec["scales"], kept = with_tuning(tmp_path, seeds=[1001]).spec.model_dump()["scales"], {}
    else:
        other = {"rounds": 9, "data.beta": 0.1, "model": "mlp"}[part]
        spec["labels"] = {**SPEC["labels"], "plain": {"method": "fedavg", part: other}}
    assert Suite(spec, "mine.yaml", tmp_path / "suites", base).choices("quick") == kept


def test_the_rows_of_a_table_at_their_papers_rates_are_not_tuned(tmp_path, runtime, monkeypatch):
    """They have its options at every scale, leave out its controls, and follow no choice."""
    table = {**SPEC["tables"]["1"], "reference": "plain", "controls": {"teacher": "alone"}}
    table["rows"] = [{"method": name} for name in ("plain", "teacher", "alone")]
    labels = {**SPEC["labels"], "alone": {"method": "fed_consist", "method.lambda_u": 0}}
    quick = {**SPEC["scales"]["quick"], "tables": {"1": {"set": {"rounds": 5}}}}
    both = {"1": table, "1-paper": {"title": "At the papers' rates", "untuned": "1"}}
    spec = {**SPEC, "labels": labels, "tables": both, "scales": {"quick": quick}}
    suite = toy(tmp_path, spec)
    judged(monkeypatch, {1: 50.0})
    assert list(tune(suite, "quick", suite.rows, runtime, jobs=1)) == [f"1/Digits/{name}" for name in labels]
    suite = toy(tmp_path, spec)
    tuned, plain = (next(row for row in suite.rows if row.table == name) for name in ("1", "1-paper"))
    assert [row.method for row in suite.rows if row.table == "1-paper"] == ["plain", "teacher"]
    configs = [suite.run(row, "quick").config for row in (tuned, plain)]
    assert [config.method.init_args["lr"] for config in configs] == [0.09, 0.03]
    assert [config.rounds for config in configs] == [5, 5]
