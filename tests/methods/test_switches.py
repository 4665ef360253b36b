"""Numbers under other arguments move only with a new revision, too."""

import pytest

from golden_runs import equal, numbers, revision, switches


@pytest.mark.parametrize("case", switches(), ids=lambda case: f"{case['method']}-{case['args']}")
def test_numbers_under_arguments(case):
    again = "`python tests/golden_runs.py` writes its numbers"
    assert case["revision"] == revision(case["method"]), f"a new revision: {again}"
    moved = not equal(numbers(case["method"], case.get("data"), **case["args"]), case["numbers"])
    assert not moved, f"they have moved: if they should, raise the method's `revision`; {again}"
