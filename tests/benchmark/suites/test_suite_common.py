"""The suite of common settings: rows of a table differ in the method and in nothing of the setting."""

import pytest

from benchmark.registry import KINDS, find_class
from benchmark.suites import suite

BOUNDS = {"labelled_clients", "hidden_labels"}  # what the rows with more labels change


@pytest.mark.parametrize("scale", ["paper", "quick"])
def test_rows_of_a_table_share_the_setting(scale: str) -> None:
    common = suite.load("common")
    for table in common.tables:
        settings = []
        for row in table.rows:
            c = common.config(row, scale)
            network = {k: v for k, v in c.model_args.items() if k != "head_dropout"}
            data = {k: v for k, v in c.data.init_args.items() if k not in BOUNDS}
            settings.append((c.model, network, c.rounds, c.roster, c.report, c.eval_every, c.data.class_path, data))
        assert all(setting == settings[0] for setting in settings)


def test_three_seeds_and_the_last_round() -> None:
    """As RULES.md asks of submitted records; nothing is compared, since nobody published these settings."""
    common = suite.load("common")
    assert common.report == "last" and common.published() == {}
    for scale in ("paper", "quick"):
        assert common.plan(scale).seeds == (0, 1, 2) and not common.compares(scale)


def test_every_setting_has_methods_made_for_it() -> None:
    common = suite.load("common")
    for table in common.tables:
        configs = [common.config(row, "paper") for row in table.rows]
        scenario = configs[0].data.init_args["scenario"]
        made = {find_class(c.method.class_path, KINDS["method"]).scenario for c in configs}
        assert scenario in made


@pytest.mark.parametrize("scale", ["paper", "quick"])
def test_every_server_with_labels_trains_alike_before_the_first_round(scale: str) -> None:
    """What one method's paper does there is no advantage of the method."""
    common = suite.load("common")
    rows = [row for row in common.rows if row.table == "server"]
    assert len(rows) >= 4
    assert {common.config(row, scale).method.init_args["server_pretrain"] for row in rows} == {10}
