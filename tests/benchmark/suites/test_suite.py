"""Suite files: layers, expansion to distinct runs, filters."""

import pytest

from benchmark.suites import suite
from benchmark.suites.plan import Row, control_of
from benchmark.suites.schema import Layer, Layers, on_top
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from datamodules.common.yaml import load_yaml

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


def test_a_later_layer_wins_over_the_one_before_it(tmp_path):
    """Each sets an option of its own, and that of the layer before it."""
    base, data_set, label, table, row, scale, of_table, of_data_set, of_both, tuned, trial, trial_of_data_set = (
        {f"model_args.o{n}": "own", f"model_args.o{n - 1}": "later"} for n in range(12)
    )
    rows = [{"method": "low", "set": row}]
    tables = {1: {"set": of_table, "datasets": {"A": {"set": of_both}}}}
    toy = Suite(
        {
            **load_yaml(SPEC, "toy"),
            "base": {"set": {"data": "digits", **base}},
            "datasets": {"A": {"set": data_set}},
            "labels": {"low": {"method": "fedavg", **label}},
            "tables": {1: {"title": "First", "datasets": ["A"], "metrics": ["acc"], "set": table, "rows": rows}},
            "scales": {
                "quick": {"seeds": [1], "set": scale, "datasets": {"A": {"set": of_data_set}}, "tables": tables}
            },
        },
        folder=tmp_path,
    )
    toy.tuned.add("quick", {"1/A/low": {"options": tuned}})
    last = Layers.model_construct(set=trial, datasets={"A": Layer(set=trial_of_data_set)})
    found = toy.values(toy.rows[0], "quick", last=last)["model_args"]
    assert found == {f"o{n}": "later" for n in range(-1, 11)} | {"o11": "own"}


def test_filters():
    toy = Suite(spec())
    plan = toy.plan("paper")

    def cells(**filters):
        return {cell for run in toy.select(plan, **filters) for cell in run.cells}

    assert len(toy.select(plan)) == len(plan.runs)
    assert cells(tables=["2"]) == {"1/A/low/M=1", "2/A/low"}
    assert cells(methods=["high"]) == {f"1/{name}/high/M={column}" for name in "AB" for column in (1, 2)}
    assert cells(only=["*/B/low"]) == {"1/B/low/M=1"}
    with pytest.raises(ConfigError, match="1/B/lov"):
        toy.select(plan, only=["1/B/low", "1/B/lov"])
    with pytest.raises(ConfigError, match=r"'lo'.*'low'"):
        toy.select(plan, methods=["lo"])
    with pytest.raises(ConfigError, match=r"'9/\*'.*`status --paper suite --scale paper`"):
        toy.select(plan, only=["9/*"])
    shorter = Suite(spec(scales={"quick": {"without": {"high": "too slow"}}}))
    with pytest.raises(ConfigError, match="high is not at scale quick: too slow"):
        shorter.select(shorter.plan("quick"), only=["1/A/high*"])


def test_a_name_with_a_star_means_its_row_before_it_is_a_pattern():
    starred = {"low*": {"method": "fedavg", "method.lr": 0.25}}
    toy = Suite(spec(labels=starred, tables={"1": {"rows": [{"method": "low*", "M": 1}]}}))
    plan = toy.plan("quick")

    def cells(only):
        return [cell for run in toy.select(plan, only=[only]) for cell in run.cells]

    assert cells("1/A/low*") == ["1/A/low*/M=1"] and set(cells("1/A/lo*")) > {"1/A/low*/M=1", "1/A/low/M=1"}
    assert [row.full_name for row in toy.matching(["1/A/low*"], "quick")] == ["1/A/low*/M=1"]
    assert [row.full_name for row in toy.matching(["1/B/low*/M=1"], "quick")] == ["1/B/low*/M=1"]


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
    assert {row.name for row in mine.rows} - {row.name for row in toy.rows} == {"2/A/mine", "own/B/mine"}
    assert [table.number for table in mine.tables] == ["1", "2", "own"]
    assert set(toy.plan("quick").runs) < set(mine.plan("quick").runs)
    assert mine.scale("quick").set == {"rounds": 2} and mine.plan("quick").seeds == (7, 8)
    (tmp_path / "one.yaml").write_text("extends: mine.yaml\npaper: one\ntables: {1: null, own: null}")
    assert [table.number for table in suite.load("one.yaml").tables] == ["2"]
    for text, message in (
        ("extends: own.yaml\npaper: own", "it extends itself"),
        ("extends: toy.yaml\n", "give it a name of its own under `paper:`"),
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
        ({"base": None, "scales": None}, "base is missing; scales is missing"),  # all that are missing at once
        (of_table(control="lo"), r"toy\.yaml: tables\.1.*'lo'.*'low'"),
        (of_table(rows=[{"method": "low", "M": 1, "K": 2}, {"method": "low", "K": 2, "M": 1}]), "twice: low/K=2/M=1;"),
        (of_table(reference="low"), "twice: high;"),  # a leaderboard knows its rows by their methods alone
        (at_quick(tables={"1": {"datasets": {"C": {}}}}), r"scales\.quick\.tables\.1\.datasets\.C: .*'C'"),
        (at_quick(tables={"1": {"dataset": {}}}), r"scales\.quick\.tables\.1\.dataset is unknown"),
    ],
)
def test_a_mistake_is_told_with_its_place(changes, message):
    with pytest.raises(ConfigError, match=message):
        Suite(spec(**changes), "toy.yaml").plan("paper")


def test_published_values_lie_beside_a_suite_of_ones_own(tmp_path):
    with pytest.raises(ConfigError, match=r"toy\.csv"):
        Suite(spec(), "toy.yaml", tmp_path).published()
    (tmp_path / "toy.csv").write_text("table,dataset,method,M,metric,value\n1,A,low,1,acc,50.1\n")
    assert list(Suite(spec(), "toy.yaml", tmp_path).published().values()) == ["50.1"]


def test_a_control_is_the_row_that_the_columns_mean():
    """Where several rows have its label, those columns decide in which they differ; else other columns do not count."""
    columns = [("low", "1", "x"), ("low", "2", "x"), ("high", "1", ""), ("high", "2", "y"), ("high", "3", "")]
    rows = [Row("1", "A", method, {"M": number, "remark": remark}, {}) for method, number, remark in columns]
    elsewhere = Row("1", "B", "low", {"M": "2"}, {})
    low, second, *high = rows
    assert [control_of(row, [*rows, elsewhere], "low") for row in (low, *high)] == [None, low, second, None]
