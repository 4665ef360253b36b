"""The suite of common settings: rows of a table differ in the method and in nothing of the setting."""

import pytest

from benchmark.registry import KINDS, find_class
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


def test_seeds_and_the_last_round() -> None:
    """As RULES.md asks of submitted records; nothing is compared, since nobody published these settings."""
    common = load("common")
    assert common.report == "last" and common.published() == {}
    for scale in SCALES:
        seeds = (0, 1, 2, 3, 4) if scale == "laptop" else (0, 1, 2)
        assert common.plan(scale).seeds == seeds and not common.scale(scale).compare


def test_every_setting_has_methods_made_for_it() -> None:
    common = load("common")
    for table in common.tables:
        configs = [common.run(row, "paper").config for row in table.rows]
        scenario = configs[0].data.init_args["scenario"]
        made = {find_class(c.method.class_path, KINDS["method"]).scenario for c in configs}
        assert scenario in made


@pytest.mark.parametrize("scale", SCALES)
def test_every_server_with_labels_trains_alike_before_the_first_round(scale: str) -> None:
    """What one method's paper does there is no advantage of the method."""
    common = load("common")
    rows = [row for row in common.rows if row.table == "server" and row.method != "all labels"]
    assert len(rows) == 2 * 6
    assert {common.run(row, scale).config.method.init_args["server_pretrain"] for row in rows} == {10}


def test_tuning_sees_no_test_images() -> None:
    tuning = load("common").scale("laptop").tuning
    assert 0 < tuning.set["data.labelled_holdout"] < 1
