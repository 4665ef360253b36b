"""Suite files: layers, expansion to distinct runs, filters."""

import re

import pytest

from benchmark.cli import main
from benchmark.config import run_id
from benchmark.suites import suite
from benchmark.suites.plan import control_of
from benchmark.suites.schema import Layer, Layers, on_top
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from datamodules.common.yaml import dump_yaml, load_yaml
from toy_suite import SUITE

SPEC = """
paper: toy
title: Toy
published: toy.csv
report: last
base: {set: {rounds: 9, data: digits, method.lr: 0.5, data.beta: 1.0}}
datasets: {A: {set: {data.beta: 2.0}, methods: {rscfed: {method.subsets: 2}}}, B: {}}
labels:
  low: {method: fedavg}
  high: {method: rscfed, method.subset_size: 4}
tables:
  "1":
    title: First
    datasets: [A, B]
    metrics: [acc, auc]
    set: {data.num_clients: 8}
    rows:
    - {method: low, M: 1}
    - {method: high, M: 1}
    - {method: high, M: 2, set: {method.subset_size: 3}}
  "2": {title: Second, datasets: [A], metrics: [acc], rows: [{method: low, set: {data.num_clients: 8}}]}
scales:
  paper: {seeds: [1, 2], compare: true}
  quick:
    {seeds: [7], set: {rounds: 2}, methods: {rscfed: {method.subset_size: 5}}, datasets: {B: {set: {rounds: 3}}}}
"""


def spec(**changes):
    """The suite with these changes on top: mappings are merged, rows appended."""
    return on_top(load_yaml(SPEC, "toy"), changes)


def test_options_of_some_methods_are_for_their_rows_alone():
    toy = Suite(spec())
    low, high, other = toy.tables[0].rows[:3]
    args = toy.run(high, "paper").config.method.init_args
    assert (args["lr"], args["subsets"], args["subset_size"]) == (0.5, 2, 4)
    assert toy.run(other, "paper").config.method.init_args["subset_size"] == 3
    assert toy.run(high, "quick").config.method.init_args["subset_size"] == 5
    assert "subsets" not in toy.run(low, "paper").config.method.init_args


def test_an_ablation_takes_the_options_of_its_method_and_then_its_own():
    """Layers say ``rscfed``; a class of ``methods/ablations/rscfed.py`` is one of those, a class elsewhere is not."""
    ablation = "methods.ablations.rscfed.LabelledInEverySubset"
    changed = spec(scales={"quick": {"methods": {"rscfed": {"method.subset_size": 3}}}})
    changed["labels"] |= {"high": {"method": ablation}, "low": {"method": "methods.rscfed.RSCFed"}}
    low, high = Suite(changed).tables[0].rows[:2]
    found = [Suite(changed).run(row, "quick").config.method.init_args["subset_size"] for row in (high, low)]
    assert found == [3, 5]
    changed["scales"]["quick"]["methods"][ablation] = {"method.subset_size": 6}
    assert Suite(changed).run(high, "quick").config.method.init_args["subset_size"] == 6


LAYERS = (
    *("base", "data set", "label", "row", "scale", "scale's table", "scale's data set"),
    *("scale's data set of the table", "tuned", "trial", "trial's data set"),
)


def test_a_later_layer_wins_over_all_before_it(tmp_path):
    """Each layer sets the rounds; the layers up to it, in any order of the file's keys, give its own number."""
    for last in range(1, len(LAYERS) + 1):
        number = {name: 10 + n for n, name in enumerate(LAYERS)}
        layer = {name: {"set": {"rounds": number[name]}} if n < last else {} for n, name in enumerate(LAYERS)}
        made = spec()
        made["base"] |= {"set": made["base"]["set"] | layer["base"].get("set", {})}
        made["datasets"]["A"] = layer["data set"]
        made["labels"]["low"] |= layer["label"].get("set", {})
        made["tables"]["1"]["rows"][0] |= layer["row"]
        made["scales"]["quick"] = {
            "seeds": [1],
            **layer["scale"],
            "tables": {1: layer["scale's table"] | {"datasets": {"A": layer["scale's data set of the table"]}}},
            "datasets": {"A": layer["scale's data set"]},
        }
        toy = Suite(made, folder=tmp_path)
        row = toy.tables[0].rows[0]
        toy.tuned.path("quick").parent.mkdir(exist_ok=True)
        toy.tuned.path("quick").write_text(dump_yaml({row.full_name: {"options": layer["tuned"].get("set", {})}}))
        trial = Layers.model_construct(**layer["trial"], datasets={"A": Layer(**layer["trial's data set"])})
        assert toy.values(row, "quick", last=trial)["rounds"] == 9 + last, LAYERS[last - 1]


def test_equal_runs_of_several_tables_are_one_run():
    toy = Suite(spec())
    plan = toy.plan("paper")
    assert len(plan.runs) == 2 * 3 * 2
    low, again = toy.tables[0].rows[0], toy.tables[1].rows[0]
    assert plan.run(low, 2) is plan.run(again, 2)
    assert plan.run(low, 2).cells == ("1/A/low", "2/A/low")
    assert plan.run(low, 2).config.seed == 2
    assert all(key == run.id == run_id(run.config) for key, run in plan.runs.items())


def test_runs_go_seed_by_seed_in_the_order_that_was_asked_for():
    """Within a seed in the order of the tables."""
    toy = Suite(spec())
    plan = toy.plan("paper", seeds=[7, 3])
    selected = toy.select(plan)
    first, second = selected[: len(selected) // 2], selected[len(selected) // 2 :]
    assert {run.config.seed for run in first} == {7} and {run.config.seed for run in second} == {3}
    for seed, own in ((7, first), (3, second)):
        assert [run.id for run in own] == [key for key, run in plan.runs.items() if run.config.seed == seed]


def test_filters():
    toy = Suite(spec())
    plan = toy.plan("paper")

    def cells(**filters):
        return {cell for run in toy.select(plan, **filters) for cell in run.cells}

    assert len(toy.select(plan)) == len(plan.runs)
    assert cells(tables=["2"]) == {"1/A/low", "2/A/low"}
    assert cells(methods=["high"]) == {"1/A/high", "1/B/high"}
    assert cells(only=["*/B/low"]) == {"1/B/low"}
    with pytest.raises(ConfigError, match="1/B/lov"):
        toy.select(plan, only=["1/B/low", "1/B/lov"])
    with pytest.raises(ConfigError, match=r"'lo'.*'low'"):
        toy.select(plan, methods=["lo"])
    with pytest.raises(ConfigError, match=r"'9/\*'.*`status --paper suite --scale paper`"):
        toy.select(plan, only=["9/*"])


def test_a_name_with_a_star_means_its_row_before_it_is_a_pattern():
    starred = {"low*": {"method": "fedavg", "method.lr": 0.25}}
    toy = Suite(spec(labels=starred, tables={"1": {"rows": [{"method": "low*", "M": 1}]}}))
    plan = toy.plan("quick")

    def cells(only):
        return [cell for run in toy.select(plan, only=[only]) for cell in run.cells]

    assert cells("1/A/low*") == ["1/A/low*"] and set(cells("1/A/lo*")) > {"1/A/low*", "1/A/low"}
    assert [row.full_name for row in toy.matching(["1/A/low*"], "quick")] == ["1/A/low*/M=1"]
    assert [row.full_name for row in toy.matching(["1/B/low*/M=1"], "quick")] == ["1/B/low*/M=1"]


def test_a_scale_leaves_out_labels():
    plan = Suite(spec(scales={"quick": {"without": {"low": "why"}}})).plan("quick")
    assert {run.config.method.name for run in plan.runs.values()} == {"rscfed"}


def test_a_suite_extends_another(tmp_path, monkeypatch):
    """A private file adds a label and a row; the runs of the other suite are the same runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(SPEC)
    (tmp_path / "mine.yaml").write_text(
        """
extends: toy.yaml
paper: mine
labels: {mine: {method: fixmatch, method.threshold: 0.5}}
tables: {2: {rows: [{method: mine}]}, own: {title: T, datasets: [B], metrics: [acc], rows: [{method: mine}]}}
scales: {quick: {seeds: [7, 8]}}
"""
    )
    toy, mine = suite.load("toy.yaml"), suite.load("mine.yaml")
    assert mine.title == "Toy"
    assert set(mine.names()) - set(toy.names()) == {"2/A/mine", "own/B/mine"}
    assert [table.number for table in mine.tables] == ["1", "2", "own"]
    assert set(toy.plan("quick").runs) < set(mine.plan("quick").runs)
    assert mine.scale("quick").set == {"rounds": 2} and mine.plan("quick").seeds == (7, 8)
    (tmp_path / "one.yaml").write_text("extends: mine.yaml\npaper: one\ntables: {1: null, own: null}")
    assert [table.number for table in suite.load("one.yaml").tables] == ["2"]
    for text, message in (
        ("extends: own.yaml\npaper: own", "it extends itself"),
        ("extends: toy.yaml\n", "give it a name of its own under `paper:`"),
        ("extends: toy.yaml\npaper: own\ntables: {3: {rows: []}}", "tables.3.title is missing"),
        ("extends: toi\npaper: own", "unknown paper 'toi'"),
        ("extends: nowhere.yaml\npaper: own", r"nowhere\.yaml"),
        ("extends: toy.yaml\npaper: own\ntables: {1: {rows: low}}", "rows: input should be a valid list"),
    ):
        (tmp_path / "own.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            suite.load("own.yaml")


def test_a_table_that_is_left_out_takes_with_it_what_belongs_to_it(tmp_path):
    """Its rows at their papers' rates, and what scales say of it; in suites further on, too."""
    of_both = {"tables": {1: {"set": {"rounds": 3}}, "1-paper": {"set": {"rounds": 3}}}}
    tuning = {"rates": ["method.lr"], "seeds": [1000], "tables": {1: {"set": {"rounds": 4}}}}
    tables = {"1-paper": {"title": "At the papers' rates", "untuned": "1"}}
    toy = Suite(spec(tables=tables, scales={"quick": {**of_both, "tuning": tuning}}), "toy.yaml", tmp_path)
    assert [table.number for table in toy.tables] == ["1", "2", "1-paper"]
    without = suite.extend(toy, {"paper": "without", "tables": {1: None}}, "without.yaml", tmp_path)
    further = suite.extend(without, {"paper": "further", "title": "More"}, "further.yaml", tmp_path)
    for one in (without, further):
        assert [table.number for table in one.tables] == ["2"]
        assert one.scale("quick").tables == one.scale("quick").tuning.tables == {}
    tuned = suite.extend(toy, {"paper": "tuned", "tables": {"1-paper": None}}, "tuned.yaml", tmp_path)
    assert [table.number for table in tuned.tables] == ["1", "2"] and list(tuned.scale("quick").tables) == ["1"]
    more = {"paper": "more", "tables": {1: {"metrics": ["acc"], "rows": [{"method": "low", "M": 3}]}}}
    filled = suite.extend(toy, more, "more.yaml", tmp_path).tables[-1]
    assert filled.metrics == ["acc"] and filled.rows[-1].columns == {"M": "3"}


def of_table(**changes):
    return {"tables": {"1": changes}}


def at_quick(**changes):
    return {"scales": {"quick": changes}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": {"set": {"method.lrr": 1}}}, r"toy\.yaml, 1/A/low: .*'lrr'.*'lr'"),
        ({"rankd": True}, "'rankd'.*'ranked'"),
        (of_table(rows=[{"method": "lov"}]), r"toy\.yaml: tables\.1.*'lov'.*'low'"),
        (of_table(control="lo"), r"toy\.yaml: tables\.1.*'lo'.*'low'"),
        (of_table(rows=[{"method": "low", "M": "1"}]), r"tables\.1.*: twice: low/M=1;"),
        (of_table(rows=[{"method": "low", "M": 1, "K": 2}, {"method": "low", "K": 2, "M": 1}]), "twice: low/K=2/M=1;"),
        (of_table(datasets=["A", "B", "A"]), r"tables\.1.*: twice: A;"),
        (of_table(reference="low"), "twice: high;"),  # a leaderboard knows its rows by their methods alone
        (at_quick(tables={"1": {"datasets": {"C": {}}}}), r"scales\.quick\.tables\.1\.datasets\.C: .*'C'"),
        (at_quick(tables={"1": {"dataset": {}}}), r"scales\.quick\.tables\.1\.dataset is unknown"),
        (at_quick(without={"lo": "why"}), r"quick\.without\.lo: .*'lo'.*'low'"),
    ],
)
def test_a_mistake_is_told_with_its_place(changes, message):
    with pytest.raises(ConfigError, match=message):
        Suite(spec(**changes), "toy.yaml").plan("paper")


def test_all_entries_that_are_missing_are_told_at_once():
    with pytest.raises(ConfigError, match="base is missing; scales is missing"):
        Suite({name: entry for name, entry in spec().items() if name not in ("base", "scales")})


def test_published_values_lie_beside_a_suite_of_ones_own_or_in_the_package(tmp_path):
    with pytest.raises(ConfigError, match=r"toy\.csv"):
        Suite(spec(), "toy.yaml", tmp_path).published()
    (tmp_path / "toy.csv").write_text("table,dataset,method,M,metric,value\n1,A,low,1,acc,50.1\n")
    assert list(Suite(spec(), "toy.yaml", tmp_path).published().values()) == ["50.1"]
    assert len(Suite(spec(published="rscfed.csv"), "toy.yaml", tmp_path).published()) == 144


def test_pending_rows_have_no_run_and_say_why():
    toy = Suite(spec(labels={"high": {"pending": "later"}}))
    assert {row.method: row.pending for row in toy.rows} == {"low": "", "high": "later"}
    assert [row.name for row in toy.matching([], "paper")] == ["1/A/low", "1/B/low", "2/A/low"]
    plan = toy.plan("paper")
    assert {run.config.method.name for run in plan.runs.values()} == {"fedavg"}
    assert len(toy.select(plan)) == len(plan.runs)


def test_a_control_is_the_row_that_the_columns_mean():
    """Where several rows have its label, those columns decide in which they differ; else other columns do not count."""
    rows = """
- {method: low, M: 1, remark: x}
- {method: low, M: 2, remark: x}
- {method: high, M: 1}
- {method: high, M: 2, remark: y}
- {method: high, M: 3}
"""
    own = {"title": "One", "datasets": ["A", "B"], "metrics": ["acc"], "control": "low", "published_runs": 3}
    (table,) = Suite({**spec(), "tables": {"1": own | load_yaml(f"rows: {rows}", "rows")}}).tables
    found = [control_of(row, table.rows, table.control) for row in table.rows[5:]]
    assert table.published_runs == 3
    assert [one and one.full_name for one in found] == [
        None, None, "1/B/low/M=1/remark=x", "1/B/low/M=2/remark=x", None
    ]  # fmt: skip


@pytest.mark.parametrize("row", ["9/A/low", "1/A/low"])
def test_the_command_that_an_error_names_finds_a_suite_of_ones_own(tmp_path, monkeypatch, capsys, row):
    """It has the path of the file: under its name alone nobody finds it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(SUITE)
    assert main(["plot", "--suite", "own.yaml", "--row", row, "--scale", "quick"]) == 2
    named = re.search("`(?:status|table) (.*?)`", capsys.readouterr().err)
    assert named and main(["status", *named[1].split()]) == 0
