"""Tuning: what a trial may see, what is chosen, and that the choice reaches the row."""

import pytest
import yaml

from benchmark.runs.records import read_record
from benchmark.runs.states import state
from benchmark.suites.suite import Suite
from benchmark.tuning import choice, further, trials, tune
from datamodules.common.errors import ConfigError, RunError
from run_folders import completed
from tuned_suites import LEARNS, SPEC, made_up, toy, with_tuning


def test_a_trial_is_the_row_with_other_rates_and_a_seed_of_its_own(tmp_path, runtime):
    suite = toy(tmp_path)
    plain, teacher = suite.rows
    found = trials(suite, "quick", suite.rows, runtime)
    assert [(one.row, one.factor) for one in found] == [(row, f) for row in (plain, teacher) for f in (0.001, 1.0, 2.0)]
    assert found[2].options == {"method.lr": 0.06}
    assert found[5].options == {"method.lr": 0.06, "method.lr_unlabelled": 0.042}  # their ratio stays
    for one in found:
        (run,) = one.runs
        config = run.config
        assert (config.seed, config.rounds) == (1000, 3)
        assert config.data.init_args["labelled_holdout"] == 0.5
        assert config.method.init_args["lr"] == one.options["method.lr"]
    assert found[3].runs[0].config.method.init_args["warmup_rounds"] == 0
    assert len({one.runs[0].id for one in found}) == 6


def test_the_tuning_of_a_data_set_has_options_of_its_own(tmp_path, runtime):
    quick = SPEC["scales"]["quick"]
    own = {"Digits": {"set": {"data.labelled_clients": 2}, "methods": {"fed_consist": {"method.warmup_rounds": 1}}}}
    tuning = {**quick["tuning"], "datasets": own}
    suite = Suite({**SPEC, "scales": {"quick": {**quick, "tuning": tuning}}}, "toy.yaml", tmp_path)
    *_, last = trials(suite, "quick", suite.rows, runtime)
    assert last.runs[0].config.data.init_args["labelled_clients"] == 2
    assert last.runs[0].config.method.init_args["warmup_rounds"] == 1
    quick = {**quick, "tuning": {**tuning, "factor": [1]}}
    with pytest.raises(ConfigError, match=r"scales\.quick\.tuning\.factor\b.*'factors'"):
        Suite({**SPEC, "scales": {"quick": quick}}, "toy.yaml", tmp_path)


def test_a_suite_need_not_name_the_number_of_rounds(tmp_path, runtime):
    """It is that of a run then, 12."""
    base = {name: value for name, value in SPEC["base"]["set"].items() if name != "rounds"}
    suite = toy(tmp_path, {**SPEC, "base": {"set": base}})
    assert {one.runs[0].config.rounds for one in trials(suite, "quick", suite.rows, runtime)} == {9}


def test_without_an_entry_nothing_is_tuned(tmp_path, runtime):
    suite = toy(tmp_path)
    with pytest.raises(ConfigError, match=r"paper.*`tuning`"):
        trials(suite, "paper", suite.rows, runtime)
    spec = SPEC | {
        "scales": {
            "quick": {
                "seeds": [0],
                "tuning": {"factors": [1], "share_of_rounds": 1, "seeds": [1000], "rates": ["method.nothing"]},
            }
        }
    }
    with pytest.raises(ConfigError, match=r"none of method\.nothing has a value to start from"):
        trials(Suite(spec, "toy.yaml"), "quick", suite.rows, runtime)


def test_the_choice_reaches_the_row(tmp_path, runtime, monkeypatch):
    """A rate of a thousandth learns nothing in three rounds; what is chosen is used by the row, and by it alone."""
    suite = toy(tmp_path, LEARNS)
    plain, teacher = suite.rows
    before = suite.run(plain, "quick").config
    made = tune(suite, "quick", [plain], runtime, jobs=1)
    tried = {one["method.lr"]: one["held_out_accuracy"] for one in made[plain.full_name]["tried"]}
    assert set(tried) == {3e-5, 0.03, 0.06}
    assert tried[3e-5] < max(tried.values())
    again = toy(tmp_path, LEARNS)
    assert again.tuned.entries("quick") == made == yaml.safe_load(again.tuned.path("quick").read_text())
    assert (
        again.run(again.rows[0], "quick").config.method.init_args["lr"] == made[plain.full_name]["options"]["method.lr"]
    )
    assert again.run(again.rows[1], "quick").config == suite.run(teacher, "quick").config
    assert suite.run(plain, "paper").config.method.init_args["lr"] == before.method.init_args["lr"]

    paths = [one.runs[0].folder for one in trials(suite, "quick", [plain], runtime)]
    assert all(state(path) == "complete" for path in paths)
    assert read_record(paths[0])["test_images"] == made[plain.full_name]["held_out_images"] == 1437 // 2

    ran = made_up(monkeypatch, lambda run: 0.0)
    assert tune(toy(tmp_path, LEARNS), "quick", [plain], runtime, jobs=1) == made and ran == []


@pytest.mark.parametrize(
    "text, says",
    [
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"1/Digits/plain: [", "not valid YAML"),
        (b"1/Digits/plain: fast", "1/Digits/plain: there are no `options`; `tune` writes them"),
        (b"1/Digits/plain: {option: {method.lr: 1}}", "1/Digits/plain: there are no `options`"),
    ],
)
def test_a_damaged_file_of_choices_is_named(tmp_path, runtime, text, says):
    suite = toy(tmp_path)
    file = suite.tuned.path("quick")
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=f"{file.name}.*{says}"):
        suite.plan("quick", None, runtime)


def test_a_rate_at_which_numbers_are_not_finite_scores_nothing(tmp_path, runtime):
    tuning = {**SPEC["scales"]["quick"]["tuning"], "factors": [1, 1e30]}
    spec = {**SPEC, "scales": {"quick": {**SPEC["scales"]["quick"], "tuning": tuning}}}
    suite = Suite(spec, "toy.yaml", tmp_path / "suites")
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert [one["held_out_accuracy"] for one in made["tried"]][1] == 0.0 < made["tried"][0]["held_out_accuracy"]
    assert made["options"] == {"method.lr": 0.03}


def test_a_trial_is_a_run_per_seed_and_scores_their_mean(tmp_path, runtime, monkeypatch):
    """On all their held-out images. As long as one of its runs is missing, nothing is chosen for the row."""
    suite = with_tuning(tmp_path, factors=[1, 2], seeds=[1000, 1001])
    first, second = trials(suite, "quick", suite.rows[:1], runtime)
    assert [run.config.seed for run in (*first.runs, *second.runs)] == [1000, 1001] * 2
    given = dict(zip([run.id for run in (*first.runs, *second.runs)], (80.0, 60.0, 50.0, None), strict=True))
    ran = made_up(monkeypatch, lambda run: given[run.id])
    with pytest.raises(RunError, match=r"1/Digits/plain x 2 \("):
        tune(suite, "quick", suite.rows[:1], runtime, jobs=1)
    assert [run.id for run in ran] == list(given)
    given[second.runs[1].id] = 30.0
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert [run.id for run in ran[4:]] == [second.runs[1].id]
    assert [one["held_out_accuracy"] for one in made["tried"]] == [70.0, 40.0]
    assert made["seeds"] == [1000, 1001] and made["held_out_images"] == 200
    assert made["margin"] == pytest.approx(100 * (0.7 * 0.3 / 200) ** 0.5, abs=0.005)


def test_the_reading_that_the_suite_reports_is_the_score(tmp_path, runtime):
    suite = with_tuning(tmp_path, factors=[1, 2])
    suite.report, suite.spec["base"]["set"]["average_last"] = "averaged", 2
    first, second = trials(suite, "quick", suite.rows[:1], runtime)
    completed(first.runs[0], 90.0, averaged={"rounds": 2, "acc": 10.0}, test_images=100)
    completed(second.runs[0], 20.0, averaged={"rounds": 2, "acc": 50.0}, test_images=100)
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert made["options"] == {"method.lr": 0.06} and made["tried"][0]["held_out_accuracy"] == 10.0


def test_lengths_in_rounds_are_shortened_with_the_run(tmp_path, runtime):
    """Rounded up, as the rounds are, from what the row has without tuning; what the entry sets itself stays."""
    lengths = ["method.warmup_rounds", "average_last", "method.ramp_length"]
    suite = with_tuning(tmp_path, lengths=lengths, share_of_rounds=0.3333333333, methods=None)
    suite.spec["base"]["set"] |= {"rounds": 30, "average_last": 20}
    suite.spec["labels"]["teacher"]["method.warmup_rounds"] = 6
    plain, *_, teacher = trials(suite, "quick", suite.rows, runtime)
    ours, theirs = plain.runs[0].config, teacher.runs[0].config
    assert (ours.rounds, ours.average_last, theirs.average_last) == (10, 7, 7)
    assert theirs.method.init_args["warmup_rounds"] == 2
    assert suite.run(suite.rows[1], "quick").config.method.init_args["warmup_rounds"] == 6
    kept = with_tuning(tmp_path, lengths=lengths, methods={"fed_consist": {"method.warmup_rounds": 1}})
    *_, teacher = trials(kept, "quick", kept.rows, runtime)
    assert teacher.runs[0].config.method.init_args["warmup_rounds"] == 1


def test_a_second_rate_stays_at_its_papers(tmp_path, runtime):
    """FedDure's C-reg has a rate of its own, which does not follow ``lr``."""
    label = {"feddure": {"method": "feddure", "data.scenario": "all_clients", "data.num_labels": 30}}
    table = {**SPEC["tables"]["1"], "rows": [{"method": "feddure"}]}
    tuning = {**SPEC["scales"]["quick"]["tuning"], "factors": [1, 3], "methods": {}}
    tuning["set"] = {"data.balanced_holdout": 50}
    quick = {"seeds": [0], "tuning": tuning}
    suite = Suite({**SPEC, "labels": label, "tables": {"1": table}, "scales": {"quick": quick}}, "toy.yaml", tmp_path)
    one, three = (trial.runs[0].config.method.init_args for trial in trials(suite, "quick", suite.rows, runtime))
    assert three["lr"] == pytest.approx(3 * one["lr"]) and three["creg_lr"] == one["creg_lr"]


def test_test_images_and_reported_seeds_take_no_part(tmp_path, runtime):
    for held_out in ("data.labelled_holdout", "data.balanced_holdout"):
        suite = with_tuning(tmp_path, set={held_out: {"data.labelled_holdout": 0.5}.get(held_out, 50)})
        assert trials(suite, "quick", suite.rows[:1], runtime)
    suite = with_tuning(tmp_path, set={})
    with pytest.raises(ConfigError, match=r"tuning would be scored on test images: set data\.balanced_holdout or data"):
        trials(suite, "quick", suite.rows[:1], runtime)
    for seeds, told in {
        (1000, 1000): r"tuning\.seeds has a seed twice",
        (999,): r"tuning\.seeds\.0: .* 1000",
    }.items():
        with pytest.raises(ConfigError, match=rf"scales\.quick\.{told}"):
            with_tuning(tmp_path, seeds=list(seeds))
    quick = {**SPEC["scales"]["quick"], "seeds": [0, 1000]}
    with pytest.raises(ConfigError, match=r"scales\.quick\.tuning\.seeds has 1000, which scale quick reports"):
        Suite({**SPEC, "scales": {"quick": quick}}, "toy.yaml", tmp_path)


def scored(tmp_path, runtime, **accuracies):
    suite = toy(tmp_path)
    own = trials(suite, "quick", suite.rows[:1], runtime)
    return [(one, (accuracies[name], 100)) for one, name in zip(own, ("low", "paper", "high"), strict=True)]


@pytest.mark.parametrize(
    ("low", "paper", "high", "chosen"),
    [
        (50.0, 50.0, 54.0, 0.03),  # the standard error of 50 % of 100 images is 5 points
        (50.0, 50.0, 56.0, 0.06),
        (99.0, 50.0, 56.0, 3e-5),
        (0.0, 0.0, 1.0, 0.06),
    ],
)
def test_noise_is_no_reason_to_leave_the_paper(tmp_path, runtime, low, paper, high, chosen):
    made = choice(scored(tmp_path, runtime, low=low, paper=paper, high=high))
    assert made["options"] == {"method.lr": chosen}
    assert len(made["tried"]) == 3


def test_of_several_that_are_tied_it_is_the_nearest_to_the_paper(tmp_path, runtime):
    """A hundredth of the rate is as good as twice; of two equally near, the better one and then the lower one."""
    suite = with_tuning(tmp_path, factors=[0.01, 0.5, 2, 4])
    own = trials(suite, "quick", suite.rows[:1], runtime)

    def chosen(*accuracies):
        return choice([(one, (acc, 100)) for one, acc in zip(own, accuracies, strict=True)])["options"]["method.lr"]

    assert chosen(60.0, 10.0, 58.0, 60.0) == 0.06
    assert chosen(10.0, 60.0, 59.0, 10.0) == chosen(10.0, 59.0, 59.0, 10.0) == 0.015
    assert chosen(10.0, 59.0, 60.0, 10.0) == 0.06
    assert chosen(60.0, 10.0, 10.0, 10.0) == 0.0003


@pytest.mark.parametrize(
    ("low", "paper", "high", "factor"),
    [
        (50.0, 60.0, 55.0, None),
        (50.0, 60.0, 60.0, 6.0),  # as good as the paper's, and still perhaps not as good as what lies beyond
        (60.0, 60.0, 50.0, 0.001 / 3),
        (60.0, 60.0, 60.0, 6.0),  # at both ends
        (60.0, 50.0, 60.0, 6.0),
        (50.0, 50.0, 51.0, 6.0),
        (51.0, 50.0, 50.0, 0.001 / 3),
        (50.0, 60.0, 56.0, 6.0),  # not the best, but no worse than it by one standard error
        (56.0, 60.0, 55.0, 0.001 / 3),
    ],
)
def test_the_best_at_the_edge_asks_for_one_trial_further_out(tmp_path, runtime, low, paper, high, factor):
    own = scored(tmp_path, runtime, low=low, paper=paper, high=high)
    assert further(toy(tmp_path), "quick", own, runtime) is None
    spec = {**SPEC["scales"]["quick"], "tuning": {**SPEC["scales"]["quick"]["tuning"], "beyond": 3}}
    suite = Suite({**SPEC, "scales": {"quick": spec}}, "toy.yaml", tmp_path / "suites")
    assert further(suite, "quick", own[:2], runtime) is None
    assert further(suite, "quick", [], runtime) is None
    one = further(suite, "quick", own, runtime)
    assert (one and one.factor) == (factor and pytest.approx(factor))
    if one:
        rate = float(f"{0.03 * factor:.2g}")
        assert one.options == {"method.lr": rate} and one.runs[0].config.method.init_args["lr"] == rate
        assert (one.runs[0].config.seed, one.runs[0].config.rounds) == (1000, 3)


def test_the_trial_further_out_is_run_and_may_be_chosen(tmp_path, runtime):
    """Rates that teach nothing lead, from the better of them on, to one that does."""
    tuning = {**SPEC["scales"]["quick"]["tuning"], "factors": [0.0005, 0.05], "beyond": 20}
    spec = {**LEARNS, "scales": {"quick": {**SPEC["scales"]["quick"], "tuning": tuning}}}
    suite = Suite(spec, "toy.yaml", tmp_path / "suites")
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)["1/Digits/plain"]
    assert [one["method.lr"] for one in made["tried"]] == [1.5e-5, 0.0015, 0.03]
    assert made["options"] == {"method.lr": 0.03}


def judged(monkeypatch, scores):
    """Nothing is run: a trial has the accuracy that is given by its row and factor; what was tried, in order."""
    tried = []

    def accuracy(run):
        row, _, factor = run.cells[0].removeprefix("tune ").partition(" x ")
        tried.append((row, factor))
        return scores[row].get(factor, 90.0)

    made_up(monkeypatch, accuracy)
    return tried


@pytest.mark.parametrize("order", ["together", "apart", "the bound alone"])
def test_a_bound_tries_every_rate_that_a_row_of_its_method_tries(tmp_path, runtime, monkeypatch, order):
    """At a rate that its method has and it has not, it would be no bound. Rows of other methods do not matter."""
    labels = {**SPEC["labels"], "all": {"method": "fedavg", "data.hidden_labels": "pooled"}}
    table = {**SPEC["tables"]["1"], "bounds": ["all"], "rows": [{"method": m} for m in ("plain", "teacher", "all")]}
    quick = {**SPEC["scales"]["quick"], "tuning": {**SPEC["scales"]["quick"]["tuning"], "beyond": 3}}
    spec = {**SPEC, "labels": labels, "tables": {"1": table}, "scales": {"quick": quick}}
    suite = Suite(spec, "toy.yaml", tmp_path / "suites")
    plain, teacher, bound = suite.rows
    scores = {
        plain.name: {"0.001": 10.0, "1": 20.0, "2": 30.0},
        teacher.name: {"0.001": 30.0, "1": 20.0, "2": 10.0},
        bound.name: {"0.001": 10.0, "1": 20.0, "2": 10.0},
    }
    tried, made = judged(monkeypatch, scores), {}
    orders = {"together": [suite.rows], "apart": [[plain], [teacher], [bound]], "the bound alone": [[bound]]}
    for rows in orders[order]:
        made |= tune(suite, "quick", rows, runtime, jobs=1)
    further_out = {row for row in tried if row[1] not in ("0.001", "1", "2")}
    of_rows = set() if order == "the bound alone" else {(plain.name, "6"), (teacher.name, "0.000333333")}
    assert further_out == of_rows | {(bound.name, "6")}
    assert [one["method.lr"] for one in made[bound.name]["tried"]] == [3e-5, 0.03, 0.06, 0.18]
    assert made[bound.name]["options"] == {"method.lr": 0.18}


def test_a_row_need_not_try_what_its_bound_tries(tmp_path, runtime, monkeypatch):
    labels = {**SPEC["labels"], "all": {"method": "fedavg", "data.hidden_labels": "pooled"}}
    table = {**SPEC["tables"]["1"], "bounds": ["all"], "rows": [{"method": m} for m in ("plain", "all")]}
    quick = {**SPEC["scales"]["quick"], "tuning": {**SPEC["scales"]["quick"]["tuning"], "beyond": 3}}
    spec = {**SPEC, "labels": labels, "tables": {"1": table}, "scales": {"quick": quick}}
    suite = Suite(spec, "toy.yaml", tmp_path / "suites")
    plain, bound = suite.rows
    inside, outside = {"0.001": 10.0, "1": 20.0, "2": 10.0}, {"0.001": 10.0, "1": 20.0, "2": 30.0}
    tried = judged(monkeypatch, {plain.name: inside, bound.name: outside})
    tune(suite, "quick", suite.rows, runtime, jobs=1)
    assert len(tried) == 7 and (bound.name, "6") in tried


def test_a_suite_of_the_installed_package_is_not_tuned(tmp_path, runtime, monkeypatch):
    suite = toy(tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match=r"suite toy is part of an installed package .* `extends: toy` and tune that"):
        tune(suite, "quick", suite.rows, runtime, jobs=1)
    assert not suite.folder.exists() and not (tmp_path / "results").exists()


def test_a_suite_that_extends_another_keeps_its_own_choices_alone(tmp_path, runtime):
    """The other suite's choices stay in that one's file, and count here as long as nothing of its own does."""
    base, folder = toy(tmp_path), tmp_path / "suites"
    chosen = {"1/Digits/plain": {"options": {"method.lr": 0.1}}, "1/Digits/teacher": {"options": {"method.lr": 0.2}}}
    folder.joinpath("tuned").mkdir(parents=True)
    base.tuned.path("quick").write_text(yaml.safe_dump(chosen))
    mine = Suite({**SPEC, "paper": "mine"}, "mine.yaml", folder, base)
    assert mine.choices("quick") == chosen
    made = tune(mine, "quick", mine.rows[:1], runtime, jobs=1)
    assert yaml.safe_load(mine.tuned.path("quick").read_text()) == made and list(made) == ["1/Digits/plain"]
    again = Suite({**SPEC, "paper": "mine"}, "mine.yaml", folder, base)
    assert again.choices("quick") == {**chosen, **made}


@pytest.mark.parametrize("part", ["rounds", "data.beta", "model", "rule"])
def test_a_choice_is_not_inherited_by_another_setting(tmp_path, part):
    """Nor where the rule of tuning is another one; a row that stays alike keeps it."""
    base = toy(tmp_path)
    chosen = {"1/Digits/plain": {"options": {"method.lr": 0.1}}, "1/Digits/teacher": {"options": {"method.lr": 0.2}}}
    base.tuned.add("quick", chosen)
    spec = {**SPEC, "paper": "mine"}
    if part == "rule":
        spec["scales"] = {
            "quick": {**SPEC["scales"]["quick"], "tuning": {**SPEC["scales"]["quick"]["tuning"], "seeds": [1001]}}
        }
        kept = {}
    else:
        other = {"rounds": 9, "data.beta": 0.1, "model": "mlp"}[part]
        spec["labels"] = {**SPEC["labels"], "plain": {"method": "fedavg", part: other}}
        kept = {"1/Digits/teacher": chosen["1/Digits/teacher"]}
    assert Suite(spec, "mine.yaml", tmp_path / "suites", base).choices("quick") == kept
