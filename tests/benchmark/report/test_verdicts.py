"""Verdicts: the two intervals by hand, and which word follows from them."""

import math

import pytest

from benchmark.report.verdicts import Effect, Level, difference, effect, judge, level, prediction

T2 = 4.302652729911275  # 97.5 % of Student's t with two degrees of freedom
T3 = 3.182446305284263  # and with three


def test_a_prediction_interval_is_for_our_noise_and_theirs() -> None:
    """Three seeds with a standard deviation of 1: t s sqrt(1/3 + 1/m)."""
    assert prediction([1.0, 2.0, 3.0]) == pytest.approx(T2 * math.sqrt(4 / 3))
    assert prediction([1.0, 2.0, 3.0], runs=3) == pytest.approx(T2 * math.sqrt(2 / 3))
    assert prediction([0.0, 0.0, 2.0, 2.0]) == pytest.approx(T3 * math.sqrt(4 / 3) * math.sqrt(5 / 4))
    assert prediction([1.0, 2.0, 3.0], of=3) == pytest.approx(7.6488 * math.sqrt(4 / 3), abs=1e-4)
    assert prediction([5.0, 5.0]) == 0.0
    assert prediction([5.0]) is None and prediction([]) is None


def test_a_level_holds_inside_the_prediction_interval() -> None:
    """The half-width is 4.968 around a mean of 2; a mean of three runs has 3.513."""
    values = [1.0, 2.0, 3.0]
    found = [level(values, printed) for printed in ("6.96", "6.97", "-2.96", "-2.97")]
    assert [one and one.holds for one in found] == [True, False, True, False]
    of_three = level(values, "6.96", runs=3)
    assert of_three is not None and of_three.half == pytest.approx(3.5131, abs=1e-4) and not of_three.holds
    same = level([70.264, 70.264], "70.26")
    assert same is not None and same.half == 0.0 and same.holds
    assert level([70.0], "70.0") is None


def test_an_effect_is_paired_by_seed() -> None:
    """Differences 2, 3 and 4: a mean of 3 with t / sqrt(3); a seed that one of both lacks does not count."""
    method = {1: 12.0, 2: 23.0, 3: 34.0, 4: 99.0}
    control = {1: 10.0, 2: 20.0, 3: 30.0, 5: 0.0}
    found = effect(method, control, "15.82", "12.0")
    assert found is not None
    assert (found.ours, found.n, found.printed, found.places) == (3.0, 3, 3.82, 2)
    assert found.half == pytest.approx(T2 / math.sqrt(3)) and found.holds
    assert effect({1: 2.0}, control, "2.0", "1.0") is None and effect({}, {}, "2.0", "1.0") is None


@pytest.mark.parametrize(
    ("ours", "half", "printed", "holds", "resolved"),
    [
        (3.0, 1.0, 4.0, True, True),  # from 2 to 4: as wide as half of what is claimed
        (3.0, 1.1, 4.0, True, False),  # wider
        (3.0, 2.0, 4.0, True, False),  # from 1 to 5: as wide as what is claimed
        (1.0, 1.0, 4.0, False, True),  # zero is the interval's end
        (-3.0, 1.0, 4.0, False, True),
        (-3.0, 1.0, -4.0, True, True),
        (3.0, 0.5, 0.0, False, False),  # nothing is claimed
    ],
)
def test_an_effect_holds_with_the_printed_sign_and_without_zero(
    ours: float, half: float, printed: float, holds: bool, resolved: bool
) -> None:
    found = Effect(ours, half, 3, printed, 1)
    assert (found.holds, found.resolved_by(half)) == (holds, resolved)


INSIDE, OUTSIDE = Level(1.0, True), Level(1.0, False)
SHOWN, UNSHOWN = Effect(3.0, 1.0, 3, 4.0, 1), Effect(0.5, 1.0, 3, 4.0, 1)


@pytest.mark.parametrize(
    ("of_level", "of_effect", "word"),
    [
        (INSIDE, SHOWN, "reproduced"),
        (INSIDE, UNSHOWN, "level only"),
        (OUTSIDE, SHOWN, "effect only"),
        (OUTSIDE, UNSHOWN, "not reproduced"),
    ],
)
def test_reproduced_needs_level_and_effect(of_level: Level, of_effect: Effect, word: str) -> None:
    assert judge(3, of_level, of_effect, True) == (word, "")


def test_a_cell_without_a_printed_effect_has_no_word() -> None:
    """Nothing says how narrow its interval would have to be."""
    narrow, wide = level([10.0, 10.1, 10.2], "10.1"), level([10.0, 20.0, 30.0], "25.0")
    assert wide is not None and wide.holds and wide.half == pytest.approx(49.68, abs=0.01)
    assert judge(3, narrow, None, False) == judge(3, wide, None, False) == ("", "no effect is printed")


def test_there_is_no_word_where_seeds_cannot_tell() -> None:
    """One interval wider, end to end, than half the printed effect is enough, whatever the other says."""
    wide, two = Effect(3.0, 1.1, 3, 4.0, 1), Effect(3.0, 1.0, 2, 4.0, 1)
    assert judge(2, INSIDE, SHOWN, True) == judge(1, None, None, False) == ("", "fewer than 3 seeds")
    assert judge(3, INSIDE, wide, True) == judge(3, OUTSIDE, wide, True) == ("", "the effect's interval is too wide")
    few = ("", "fewer than 3 seeds in common with the control")
    assert judge(3, INSIDE, two, True) == judge(3, INSIDE, None, True) == few
    assert judge(3, Level(1.1, True), SHOWN, True) == ("", "the level's interval is too wide")
    assert judge(3, Level(1.1, False), UNSHOWN, True) == ("", "the level's interval is too wide")


def test_a_level_that_would_hold_anywhere_confirms_nothing() -> None:
    """Seeds of 60, 64 and 68 have 70.0 in their interval, and the control's 60.0, too."""
    seeds, control = {0: 60.0, 1: 64.0, 2: 68.0}, {0: 50.0, 1: 54.2, 2: 58.1}
    of_level, of_effect = level(list(seeds.values()), "70.0"), effect(seeds, control, "70.0", "60.0")
    assert of_level is not None and of_level.holds and of_effect is not None and of_effect.holds
    assert judge(3, of_level, of_effect, True) == ("", "the level's interval is too wide")


def test_difference_rounds_as_the_paper_prints() -> None:
    assert difference(95.55, "95.5") in (0.0, 0.1)
    assert difference(95.53, "95.5") == 0.0
    assert difference(70.264, "70.26") == 0.0
    assert difference(68.2, "70.26") == -2.06
