"""The boards of the rules' third version: seeds, controls, and rows at the rates of their papers."""

import pytest

from benchmark.board.admit import candidates
from benchmark.config import Runtime
from papers import load
from runs import setting

BOARDS = {"news": 20, "mnist": 10}


@pytest.mark.parametrize(("name", "seeds"), BOARDS.items())
def test_every_row_but_reference_and_bounds_has_a_control_in_its_setting(name: str, seeds: int) -> None:
    """With the row's method, or that which the suite names; no seed that pilots have used takes part in a choice."""
    suite = load(name)
    assert suite.scale("board").seeds == list(range(seeds))
    assert suite.scale("board").tuning.seeds == [1100, 1101]
    for table in (table for table in suite.tables if table.reference):
        configs = {row.method: suite.run(row, "board").config for row in table.rows}
        rows = set(configs) - {table.reference, *table.bounds, *table.controls.values()}
        assert rows == set(table.controls)
        assert all(setting(config) == setting(configs[table.reference]) for config in configs.values())
        assert "acc_worst_clients" in table.metrics
        (beside,) = [one for one in suite.tables if one.untuned == table.number]
        assert [row.method for row in beside.rows] == [m for m in configs if m not in table.controls.values()]


def test_mnist_is_admitted_on_seeds_of_its_own() -> None:
    pilots = {1000, 1001, 1002, 2000, 2001, 2002, 2003}
    for one in candidates(load("mnist"), "board", Runtime()):
        for runs in one.runs.values():
            assert not pilots & {run.config.seed for run in runs}
            assert {run.config.data.init_args["validation"] for run in runs} == {54_000}
