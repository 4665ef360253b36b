"""Numbers under other arguments move only with a new revision, too."""

import pytest

from golden_runs import equal, numbers, revision, switches


@pytest.mark.parametrize("case", switches(), ids=lambda case: f"{case['method']}-{case['args']}")
def test_numbers_under_arguments(case):
    again = "`python tests/golden_runs.py` writes its numbers"
    assert case["revision"] == revision(case["method"]), f"a new revision: {again}"
    assert equal(numbers(case["method"], case.get("data"), **case["args"]), case["numbers"])
