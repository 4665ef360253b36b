"""How times and amounts are worded."""

from benchmark.console import duration, size


def test_times_and_sizes_for_people():
    assert [duration(s) for s in (3.14, 45, 720, 12_600, 181_440)] == ["3.1 s", "45 s", "12 min", "3.5 h", "2.1 days"]
    assert [size(b) for b in (0, 12_000, 3.4e6, 6e8, 8.7e9)] == ["0 kB", "12 kB", "3.4 MB", "0.6 GB", "8.7 GB"]
    assert [size(b) for b in (99_600, 99.6e6, 150e9)] == ["100 kB", "100 MB", "150 GB"]
