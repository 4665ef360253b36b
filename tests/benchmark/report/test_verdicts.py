"""Verdicts: the intervals by hand, and which word follows from constructed seeds."""

import math

import pandas as pd
import pytest

from benchmark.report.verdicts import Lead, difference, lead, prediction

T2 = 4.302652729911275  # 97.5 % of Student's t with two degrees of freedom
T3 = 3.182446305284263  # and with three


def of(differences: list[float], printed: str, runs: int = 1) -> Lead:
    """Leads over a control of 50.0, printed as such."""
    ours = 50.0 + pd.Series(differences)
    found = lead(ours, pd.Series(50.0, ours.index), printed, "50.0", runs)
    assert found is not None
    return found


def test_a_prediction_interval_is_for_our_noise_and_theirs() -> None:
    """Three seeds with a standard deviation of 1: t s sqrt(1/3 + 1/m)."""
    assert prediction([1.0, 2.0, 3.0]) == pytest.approx(T2 * math.sqrt(4 / 3))
    assert prediction([1.0, 2.0, 3.0], runs=3) == pytest.approx(T2 * math.sqrt(2 / 3))
    assert prediction([0.0, 0.0, 2.0, 2.0]) == pytest.approx(T3 * math.sqrt(4 / 3) * math.sqrt(5 / 4))
    assert prediction([1.0, 2.0, 3.0], of=3) == pytest.approx(7.6488 * math.sqrt(4 / 3), abs=1e-4)
    assert prediction([5.0, 5.0]) == 0.0
    assert prediction([5.0]) is None and prediction([]) is None


def test_a_lead_is_paired_by_seed() -> None:
    """Differences 2, 3 and 4: a mean of 3 with t / sqrt(3); a seed that one of both lacks does not count."""
    method = pd.Series({1: 12.0, 2: 23.0, 3: 34.0, 4: 99.0})
    control = pd.Series({1: 10.0, 2: 20.0, 3: 30.0, 5: 0.0})
    found = lead(method, control, "15.82", "12.0", 3)
    assert found is not None
    assert (found.ours, found.n, found.printed, found.places) == (3.0, 3, 3.82, 2)
    assert found.half == pytest.approx(T2 / math.sqrt(3))
    assert found.prediction == pytest.approx(T2 * math.sqrt(2 / 3))
    assert lead(pd.Series({7: 2.0}), control, "2.0", "1.0") is None


# The seeds scatter by s = 1: the confidence interval is the mean ± 2.484, the prediction interval of one run ± 4.968.
@pytest.mark.parametrize(
    ("differences", "printed", "word"),
    [
        ([2.0, 3.0, 4.0], "57.9", "holds"),  # 3 + 4.968 = 7.968
        ([2.0, 3.0, 4.0], "58.0", "smaller"),
        ([2.0, 3.0, 4.0], "50.1", "holds"),  # larger than printed
        ([9.0, 10.0, 11.0], "51.0", "holds"),  # by far
        ([1.0, 2.0, 3.0], "54.5", "not seen"),  # from -.484 to 4.484
        ([1.0, 2.0, 3.0], "54.4", "open"),
        ([-3.0, -2.0, -1.0], "50.4", "open"),  # from -4.484 to .484
        ([-3.0, -2.0, -1.0], "50.5", "not seen"),
        ([-4.0, -3.0, -2.0], "50.5", "reversed"),  # from -5.484 to -.516
        ([-4.0, -3.0, -2.0], "45.0", "holds"),  # a printed loss
        ([-4.0, -3.0, -2.0], "42.0", "smaller"),
        ([2.0, 3.0, 4.0], "45.0", "reversed"),
        ([1.0, 2.0, 3.0], "45.0", "not seen"),
        ([2.0, 3.0, 4.0], "50.0", ""),  # nothing is claimed
        ([3.04, 3.04, 3.04], "53.0", "holds"),  # no scatter: ours is rounded as the printed lead is
        ([3.06, 3.06, 3.06], "53.2", "smaller"),
        ([0.0, 0.0, 0.0], "53.0", "not seen"),
    ],
)
def test_the_lead_decides(differences: list[float], printed: str, word: str) -> None:
    assert of(differences, printed).verdict[0] == word


def test_a_mean_of_several_printed_runs_is_expected_closer() -> None:
    """3 ± 4.302 x sqrt(1/3 + 1/3) = 3.513 for three."""
    assert of([2.0, 3.0, 4.0], "56.5", runs=3).verdict == ("holds", "")
    assert of([2.0, 3.0, 4.0], "56.6", runs=3).verdict == ("smaller", "")


def test_fewer_than_three_seeds_leave_it_open() -> None:
    one, two = of([3.0], "53.0"), of([3.0, 3.0], "53.0")
    assert (one.ours, one.n) == (3.0, 1) and math.isnan(one.half) and two.half == 0.0
    assert one.verdict == two.verdict == ("open", "fewer than 3 seeds")


def test_every_scatter_is_decided_by_enough_seeds() -> None:
    """The lead of a row that scatters by twice what is printed: open with four seeds, decided with 400."""
    wide = [-8.0, 0.0, 8.0, 0.0]
    assert of(wide, "54.0").verdict[0] == "open"
    assert of(wide * 100, "54.0").verdict[0] == "not seen"
    assert of([one + 4.0 for one in wide] * 100, "54.0").verdict[0] == "holds"


def test_difference_rounds_as_the_paper_prints() -> None:
    assert difference(95.55, "95.5") in (0.0, 0.1)
    assert difference(95.53, "95.5") == 0.0
    assert difference(70.264, "70.26") == 0.0
    assert difference(68.2, "70.26") == -2.06
