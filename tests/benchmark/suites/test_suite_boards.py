"""The suites of all methods, common settings and boards: what their rows share, and on which seeds they are judged."""

import pytest

from papers import load
from runs import setting

SCALES = {"common": ("paper", "quick"), "images": ("board",), "news": ("board", "quick"), "mnist": ("board",)}


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


@pytest.mark.parametrize("name", ["news", "mnist"])
def test_every_row_but_reference_and_bounds_has_a_control(name: str) -> None:
    """And every row but these controls a line at its paper's rates."""
    suite = load(name)
    for table in (table for table in suite.tables if table.reference):
        methods, controls = [row.method for row in table.rows], table.controls.values()
        assert {*methods} - {table.reference, *table.bounds, *controls} == {*table.controls}
        assert "acc_worst_clients" in table.metrics
        (beside,) = [one for one in suite.tables if one.untuned == table.number]
        assert [row.method for row in beside.rows] == [method for method in methods if method not in controls]
