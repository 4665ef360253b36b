"""Curves of several seeds: means, deviations, gaps, and what a round had cost."""

import json
from pathlib import Path

import pytest

from benchmark.report.curves import averaged, read_curve, with_cost


def test_cost_is_counted_from_the_first_round() -> None:
    """Rounds between two evaluated ones cost as much as the second; a row without what is needed stays as it is."""
    rows = [
        {"round": 1, "bytes_up": 10, "bytes_down": 20, "timing": {"seconds": 2.0}},
        {"round": 3, "bytes_up": 30, "bytes_down": 60, "timing": {"seconds": 1.5}},
        {"round": 4, "bytes_up": 40, "timing": {}},
    ]
    found = with_cost(rows)
    assert [row.get("bytes") for row in found] == [30, 90, None]
    assert [row.get("seconds") for row in found] == [4.0, 7.0, None]
    assert found[2] == rows[2]


def test_seeds_are_averaged_over_the_rounds_that_all_have() -> None:
    """Numbers, lists entry by entry; what one seed lacks is not a mean of the others."""
    one = [
        {"round": 0, "acc": 10.0, "share": [0.0, 1.0], "loss": None, "bytes": 5},
        {"round": 1, "acc": 20.0, "share": [None, 1.0], "bytes": 10},
        {"round": 2, "acc": 30.0},
    ]
    two = [
        {"round": 0, "acc": 14.0, "share": [1.0, 1.0], "loss": 1.0, "bytes": 7, "own": 3.0, "timing": {"seconds": 1}},
        {"round": 1, "acc": 20.0, "share": [1.0, 0.0], "bytes": 10},
    ]
    curve = averaged([one, two])
    assert curve.seeds == 2
    assert curve.rows == [
        {"round": 0, "acc": 12.0, "share": [0.5, 1.0], "loss": None, "bytes": 6.0},
        {"round": 1, "acc": 20.0, "share": [None, 0.5], "bytes": 10.0},
    ]
    assert curve.spread[0]["acc"] == pytest.approx(8**0.5) and curve.spread[1]["acc"] == 0.0
    assert curve.spread[0]["round"] == 0 and curve.spread[1]["share"] == [None, pytest.approx(0.5**0.5)]


def test_one_seed_is_its_rows() -> None:
    rows = [{"round": 0, "acc": 10.0, "timing": {"seconds": 1.0}}]
    curve = averaged([rows])
    assert (curve.rows, curve.spread, curve.seeds) == (rows, [], 1)


def test_columns_that_are_asked_for_are_those_of_the_whole_curve(tmp_path: Path) -> None:
    """With the axes, and without what takes long."""
    for seed in (0, 1):
        costs = {"bytes_up": 10 * seed, "bytes_down": 5, "timing": {"seconds": 1.0 + seed}}
        rows = [{"round": n, "acc": 10.0 * n + seed, "acc_by_class": [1.0, seed], **costs} for n in range(3)]
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, brief = read_curve(list(tmp_path.iterdir())), read_curve(list(tmp_path.iterdir()), ["acc"])
    names = {"round", "bytes", "seconds", "acc"}
    for all_of, some in ((whole.rows, brief.rows), (whole.spread, brief.spread)):
        assert some == [{name: row[name] for name in row if name in names} for row in all_of] and some
