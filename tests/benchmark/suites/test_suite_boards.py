"""The suites of all methods, common settings and boards: what their rows share, and on which seeds they are judged."""

import pytest

from benchmark.board.admit import candidates
from benchmark.config import Runtime, apply, from_dict, identity, resolve
from papers import load
from runs import setting

SCALES = {"common": ("paper", "laptop", "quick"), "images": ("board",), "news": ("board", "quick"), "mnist": ("board",)}
BOARDS = {"news": 20, "mnist": 10}


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name, scales in SCALES.items() for scale in scales])
def test_rows_of_a_table_share_the_setting(name: str, scale: str) -> None:
    """They differ in the method and in nothing of the setting; only bounds see more labels."""
    suite = load(name)
    for table in (table for table in suite.tables if not table.untuned):
        for dataset in {row.dataset for row in table.rows}:
            configs = {row.method: suite.run(row, scale).config for row in table.rows if row.dataset == dataset}
            first = configs[table.reference or table.rows[0].method]
            assert all(setting(config) == setting(first) for config in configs.values())
            hidden = {name for name, c in configs.items() if c.data.init_args["hidden_labels"] == "hidden"}
            assert set(configs) - hidden == set(table.bounds) | ({"revealed labels"} & set(configs))


@pytest.mark.parametrize("scale", SCALES["common"])
def test_every_server_with_labels_trains_alike_before_the_first_round(scale: str) -> None:
    """What one method's paper does there is no advantage of the method."""
    common = load("common")
    rows = [row for row in common.rows if row.table == "server" and row.method != "all labels"]
    assert len(rows) == 2 * 6
    assert {common.run(row, scale).config.method.init_args["server_pretrain"] for row in rows} == {10}


@pytest.mark.parametrize(("name", "seeds"), BOARDS.items())
def test_every_row_but_reference_and_bounds_has_a_control(name: str, seeds: int) -> None:
    """With the row's method, or that which the suite names; no seed that pilots have used takes part in a choice."""
    suite = load(name)
    assert suite.scale("board").seeds == list(range(seeds))
    assert suite.scale("board").tuning.seeds == [1100, 1101]
    for table in (table for table in suite.tables if table.reference):
        methods, controls = [row.method for row in table.rows], table.controls.values()
        assert {*methods} - {table.reference, *table.bounds, *controls} == {*table.controls}
        assert "acc_worst_clients" in table.metrics
        (beside,) = [one for one in suite.tables if one.untuned == table.number]
        assert [row.method for row in beside.rows] == [method for method in methods if method not in controls]


def test_variants_of_news_meet_the_setting_that_they_explain() -> None:
    """They stand in tables of their own, which have no reference and so are not ranked."""
    papers = load("news")
    named = {table.number: table for table in papers.tables}
    for name in ("clients", "all"):
        own, beside = named[name], named[f"{name}-diagnostics"]
        assert own.reference and not beside.reference
        for scale in SCALES["news"]:
            assert setting(papers.run(own.rows[0], scale).config) == setting(papers.run(beside.rows[0], scale).config)


def test_labels_of_news_are_those_of_the_common_settings_and_of_the_digits() -> None:
    """But for the two of the central trial, which are in no table; tables of texts and digits have the same rows."""
    common, texts, digits = load("common"), load("news"), load("mnist")
    assert all(texts.spec.labels[name] == label for name, label in common.spec.labels.items())
    methods, more = ({name: one.method for name, one in suite.spec.labels.items()} for suite in (texts, digits))
    assert methods.items() <= more.items() and more.keys() - methods == {"central supervised", "central FixMatch"}
    rows, same = ([(t.number, [row.method for row in t.rows]) for t in suite.tables] for suite in (texts, digits))
    assert rows == same


def test_one_central_trial_serves_all_settings() -> None:
    """Its two rows differ in the weight of unlabelled images alone, and its seeds were in no pilot."""
    asked = candidates(load("images"), "board", Runtime())
    assert [one.name for one in asked] == [f"{name}/Fashion-MNIST" for name in ("clients", "server", "all")]
    trials = [{label: one.runs[label] for label in (one.supervised, one.semi_supervised)} for one in asked]
    ids = {run.id for trial in trials for runs in trial.values() for run in runs}
    assert len(ids) == 2 * len(trials[0]["central FixMatch"])
    supervised, fixmatch = (runs[0].config for runs in trials[0].values())
    weights = [config.method.init_args["lambda_u"] for config in (supervised, fixmatch)]
    assert weights == [0, 1] and supervised.data.init_args["num_clients"] == 1
    same = apply(identity(supervised), {"method.lambda_u": 1})
    assert identity(resolve(from_dict(same))) == identity(fixmatch)
    assert min(run.config.seed for run in trials[0]["central FixMatch"]) >= 1010
