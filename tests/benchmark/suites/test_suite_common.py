"""The suite of common settings: rows of a table differ in the method and in nothing of the setting."""

import pytest

from papers import load
from runs import setting

SCALES = ("paper", "laptop", "quick")


@pytest.mark.parametrize("scale", SCALES)
def test_rows_of_a_table_share_the_setting(scale: str) -> None:
    common = load("common")
    for table in common.tables:
        for dataset in ("Fashion-MNIST", "CIFAR-10"):
            rows = [row for row in table.rows if row.dataset == dataset]
            assert len(rows) >= 7
            configs = {row.method: common.run(row, scale).config for row in rows}
            assert all(setting(config) == setting(configs[table.reference]) for config in configs.values())
            hidden = {name for name, c in configs.items() if c.data.init_args["hidden_labels"] == "hidden"}
            assert set(configs) - hidden == set(table.bounds)
            assert table.reference in hidden


@pytest.mark.parametrize("scale", SCALES)
def test_every_server_with_labels_trains_alike_before_the_first_round(scale: str) -> None:
    """What one method's paper does there is no advantage of the method."""
    common = load("common")
    rows = [row for row in common.rows if row.table == "server" and row.method != "all labels"]
    assert len(rows) == 2 * 6
    assert {common.run(row, scale).config.method.init_args["server_pretrain"] for row in rows} == {10}
