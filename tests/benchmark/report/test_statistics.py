"""Statistics of a setting: closed forms, cases worked by hand, and what must not depend on order."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmark.report.statistics import (
    FAILED,
    compare,
    cost,
    difference,
    interval,
    late_rise,
    lead,
    prediction,
    sign_flip,
)

T2 = 4.302652729911275  # 97.5 % of Student's t with two degrees of freedom
SCORES = pd.DataFrame(
    {
        "base": [50.0, 52.0, 54.0, 56.0, 58.0],
        "better": [52.0, 55.0, 55.0, 60.0, 63.0],  # +2 +3 +1 +4 +5: mean 3, standard error sqrt(0.5)
        "mixed": [49.0, 53.0, 53.0, 57.0, 58.0],  # -1 +1 -1 +1 0: mean 0
        "worst": [10.0, 10.0, 10.0, 10.0, 10.0],
    },
    index=[0, 1, 2, 3, 4],
)


def test_an_interval_is_that_of_students_t():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / 3**0.5)  # t(0.975, 2) times 1 / sqrt(3)
    assert interval([5.0, 5.0]) == 0.0
    assert interval([5.0]) is interval([]) is None


def test_differences_are_paired_by_seed():
    """The spread over seeds is large, that of the differences is not; only the latter counts."""
    found = compare(SCORES, "base")
    line = found.loc["better"]
    assert (line["mean"], line["difference"], line["n"]) == pytest.approx((57.0, 3.0, 5))
    assert line["difference_ci95"] == pytest.approx(2.776445 * 0.5**0.5)  # t(0.975, 4)
    assert line["ci95"] > 2 * line["difference_ci95"]
    assert line["p"] == pytest.approx(0.01324, abs=1e-5)  # t = 3 sqrt(2) with four degrees of freedom
    assert (line["above"], line["p_flip"]) == (1.0, 2 / 32)  # five seeds cannot say more
    assert (found.loc["mixed", "p"], found.loc["mixed", "above"]) == pytest.approx((1.0, 0.5))
    assert found.loc["base", ["difference", "p", "above"]].isna().all()


def test_bounds_are_outside_the_family():
    """They have a difference and an interval and no test; the others are corrected as if they were absent."""
    found, without = compare(SCORES, "base", bounds=["worst"]), compare(SCORES.drop(columns="worst"), "base")
    pd.testing.assert_frame_equal(found.drop(index="worst"), without)
    assert found.loc["worst", ["difference", "difference_ci95"]].notna().all()
    assert found.loc["worst", ["p", "p_holm", "p_flip", "simultaneous_ci95"]].isna().all()
    assert found.loc["better", "p_holm"] == pytest.approx(2 * found.loc["better", "p"])


def test_simultaneous_intervals_are_bonferronis():
    """Each of two is of 97.5 %: t(0.9875, 4) is 3.495406 (Bonferroni's table of t)."""
    found = compare(SCORES, "base", bounds=["worst"])
    assert found.loc["better", "simultaneous_ci95"] == pytest.approx(3.495406 * 0.5**0.5)
    assert found.loc["mixed", "simultaneous_ci95"] == pytest.approx(3.495406 * (1 / 5) ** 0.5)  # of variance 1
    alone = compare(SCORES[["base", "better"]], "base").loc["better"]
    assert alone["simultaneous_ci95"] == alone["difference_ci95"]


def test_rows_that_wait_for_their_runs_are_in_the_family():
    """Otherwise a difference could lose its clearness when another row comes in."""
    waiting = compare(SCORES.assign(worst=np.nan), "base")
    whole = compare(SCORES, "base")
    assert waiting.loc["better", "simultaneous_ci95"] == whole.loc["better", "simultaneous_ci95"]
    assert waiting.loc["better", "p_holm"] == pytest.approx(3 * waiting.loc["better", "p"])
    assert (waiting.loc["worst", ["n", "failed", "pairs"]] == 0).all()
    assert waiting.loc["worst"].drop(["n", "failed", "pairs"]).isna().all()


def test_sign_flips_are_those_of_scipy():
    draws = np.random.default_rng(1)
    for n in (4, 8, 11):
        values = draws.normal(0.4, 1, n)
        oracle = stats.permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf)
        assert sign_flip(values) == pytest.approx(oracle.pvalue)
    assert sign_flip([0.1, 0.2, -0.3]) == 1.0  # whose sum is not zero in floating point
    assert sign_flip(np.arange(1.0, 21.0)) == 2**-19  # as many as are flipped
    assert sign_flip(np.ones(21)) is sign_flip([]) is None


def test_the_rise_over_the_last_quarter():
    """A line that gains 0.1 a round gains 10 in 100 of 400 rounds; what came before does not count."""

    def rise(rounds, accuracies):
        return late_rise(pd.DataFrame({"round": rounds, "acc": accuracies}))

    rounds = list(range(9, 400, 10))
    line = [50 + 0.1 * number if number >= 299 else 0.0 for number in rounds]
    assert rise(rounds, line) == pytest.approx(10.0)
    collapsed = [*line[:-1], 10.0]
    assert 6 < rise(rounds, collapsed) <= 10.0  # least squares would say that it falls
    assert np.polyfit(rounds[29:], collapsed[29:], 1)[0] < 0
    assert np.isnan(rise([1, 4], [40.0, 60.0])) and np.isnan(rise([], []))


def test_a_failed_run_has_no_accuracy_and_is_below_all_others():
    broken = SCORES.copy()
    broken.loc[2, "better"] = broken.loc[[3, 4], "worst"] = broken.loc[4, "base"] = FAILED
    found = compare(broken, "base")
    line = found.loc["better"]
    assert (line["n"], line["failed"], line["pairs"]) == (4, 1, 3)
    assert line["mean"] == pytest.approx((52 + 55 + 60 + 63) / 4)
    assert line["difference"] == pytest.approx((2 + 3 + 4) / 3)
    assert line["above"] == pytest.approx(4 / 5)  # below in seed 2, above where the reference has failed
    assert found.loc["worst", "above"] == 0.0  # in the four seeds in which one of the two has not failed


def test_a_tie_up_to_rounding_counts_half():
    noisy = pd.DataFrame({"a": [0.1 + 0.2, 1.0], "b": [0.3, 1.0]})
    assert compare(noisy, "b").loc["a", "above"] == 0.5


def test_differences_that_are_all_equal_have_no_test():
    """Two runs that are the same run differ by nothing, and no p-value says otherwise; nor where only rounding does."""
    line = compare(SCORES.assign(same=SCORES["base"]), "base").loc["same"]
    assert (line["difference"], line["difference_ci95"], line["above"]) == (0, 0, 0.5)
    assert np.isnan(line["p"])
    rough = pd.DataFrame({"base": [90.1, 50.2, 70.3]}).assign(less=[89.0, 49.1, 69.2])
    assert (rough["less"] - rough["base"]).std() > 0
    line = compare(rough, "base").loc["less"]
    assert (line["difference"], line["difference_ci95"]) == (-1.1, 0) and np.isnan(line["p"])


def test_the_cost_of_an_accuracy():
    record = {"timing": {"seconds": 100.0}}
    rows = pd.DataFrame({"round": [1, 3, 9], "acc": [40.0, 61.0, 55.0], "bytes_up": [1, 3, 5], "bytes_down": [2, 4, 6]})
    rows = rows.assign(steps=[5, 10, 15], seconds=[4.0, 10.0, 40.0])  # 10 of 40 until the goal, of a run that took 100
    assert cost(record, rows, 60.0) == {"rounds": 4, "bytes_up": 3, "bytes_down": 4, "steps": 10, "seconds": 25.0}
    assert {"seconds", "steps"}.isdisjoint(cost(record, rows.drop(columns=["seconds", "steps"]), 60.0))
    assert cost(record, rows, 61.5) is None  # no round has it


def test_a_prediction_interval_is_for_our_noise_and_theirs():
    """Three seeds with a standard deviation of 1: t s sqrt(1/3 + 1/m)."""
    assert prediction([1.0, 2.0, 3.0]) == pytest.approx(T2 * math.sqrt(4 / 3))
    assert prediction([1.0, 2.0, 3.0], runs=3) == pytest.approx(T2 * math.sqrt(2 / 3))
    assert prediction([0.0, 0.0, 2.0, 2.0]) == pytest.approx(3.182446 * math.sqrt(4 / 3) * math.sqrt(5 / 4))
    assert prediction([1.0, 2.0, 3.0], of=3) == pytest.approx(7.6488 * math.sqrt(4 / 3), abs=1e-4)
    assert prediction([5.0, 5.0]) == 0.0
    assert prediction([5.0]) is None and prediction([]) is None


def test_a_lead_is_paired_by_seed():
    """Differences 2, 3 and 4: a mean of 3 with t / sqrt(3); a seed that one of both lacks does not count."""
    method = pd.Series({1: 12.0, 2: 23.0, 3: 34.0, 4: 99.0})
    control = pd.Series({1: 10.0, 2: 20.0, 3: 30.0, 5: 0.0})
    found = lead(method, control, "15.82", "12.0", 3)
    assert [found[f"effect{name}"] for name in ("", "_n", "_published", "_places")] == [3.0, 3, 3.82, 2]
    assert found["effect_ci95"] == pytest.approx(T2 / math.sqrt(3))
    assert found["effect_prediction"] == pytest.approx(T2 * math.sqrt(2 / 3))
    assert lead(pd.Series({7: 2.0}), control, "2.0", "1.0") is None


# The seeds scatter by s = 1: the confidence interval is the mean ± 2.484, the prediction interval of one run ± 4.968.
@pytest.mark.parametrize(
    ("differences", "printed", "word"),
    [
        ([2.0, 3.0, 4.0], "57.9", "holds"),  # 3 + 4.968 = 7.968
        ([2.0, 3.0, 4.0], "58.0", "smaller"),
        ([9.0, 10.0, 11.0], "51.0", "holds"),  # larger than printed by far
        ([1.0, 2.0, 3.0], "54.5", "not seen"),  # from -.484 to 4.484
        ([1.0, 2.0, 3.0], "54.4", "open"),
        ([-3.0, -2.0, -1.0], "50.4", "open"),  # from -4.484 to .484
        ([-3.0, -2.0, -1.0], "50.5", "not seen"),
        ([-4.0, -3.0, -2.0], "50.5", "reversed"),  # from -5.484 to -.516
        ([-4.0, -3.0, -2.0], "42.0", "smaller"),  # a printed loss
        ([2.0, 3.0, 4.0], "50.0", ""),  # nothing is claimed
        ([3.04, 3.04, 3.04], "53.0", "holds"),  # no scatter: ours is rounded as the printed lead is
        ([3.06, 3.06, 3.06], "53.2", "smaller"),
        ([0.0, 0.0, 0.0], "53.0", "not seen"),
        ([3.0, 3.0], "53.0", "open"),  # fewer than three seeds
    ],
)
def test_the_lead_decides(differences, printed, word):
    """Over a control of 50.0, printed as such."""
    ours = 50.0 + pd.Series(differences)
    assert lead(ours, pd.Series(50.0, ours.index), printed, "50.0")["verdict"] == word


def test_difference_rounds_as_the_paper_prints():
    assert difference(95.53, "95.5") == difference(70.264, "70.26") == 0.0
    assert difference(68.2, "70.26") == -2.06
