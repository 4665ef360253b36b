"""How times are worded."""

from benchmark.runs.console import duration


def test_times_for_people():
    assert [duration(s) for s in (3.14, 45, 720, 12_600, 181_440)] == ["3.1 s", "45 s", "12 min", "3.5 h", "2.1 days"]
