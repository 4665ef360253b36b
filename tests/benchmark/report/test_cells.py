"""Values of cells; what is judged, and what cells lack, is tested with the tables that show it."""

from benchmark.report.cells import deviation


def test_deviation_is_a_samples():
    assert deviation([5.0]) is None and deviation([]) is None
    assert deviation([1.0, 3.0, 5.0]) == 2.0
