"""A row beside the best one of its setting."""

from types import SimpleNamespace

import pandas as pd
import pytest

from benchmark.board.enter import beside_best
from benchmark.report.statistics import FAILED

SCORES = pd.DataFrame(
    {
        "all labels": [90.0, 90.0, 90.0],
        "good": [60.0, 62.0, 64.0],
        "mine": [61.0, 62.0, 66.0],
        "base": [50.0] * 3,
        "late": [70.0, FAILED, 70.0],
    }
)


def setting(**scores):
    table = SCORES.assign(**scores)
    lines = pd.DataFrame({"n": [3, 3, 3, 3, 2]}, index=table.columns)
    order = ("all labels", "mine", "good", "base", "late")
    bounds, controls = ("all labels",), {}
    return SimpleNamespace(scores=table, lines=lines, order=order, bounds=bounds, controls=controls, reference="base")


def test_it_is_paired_with_the_best_other_row():
    """Bounds, and rows with failed runs behind the others, are none; a seed that failed is left out."""
    assert beside_best(setting(), "mine").startswith("To good, the best other row: +1.00 ± 2.48, paired over 3 seeds")
    assert beside_best(setting(mine=[61.0, FAILED, 66.0]), "mine").startswith("To good, the best other row: +1.50 ±")
    assert beside_best(setting(), "good").startswith("To mine, the best other row: -1.00 ±")


@pytest.mark.parametrize("mine", [[FAILED] * 3, [float("nan")] * 3])
def test_a_row_without_results_is_beside_none(mine):
    assert beside_best(setting(mine=mine), "mine") == ""
