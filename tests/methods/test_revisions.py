"""Numbers of methods move only with a new revision."""

import pytest

from golden_runs import equal, kept, names, numbers, revision


@pytest.mark.parametrize("name", names())
def test_numbers_move_only_with_a_new_revision(name):
    entry = kept().get(name)
    again = "`python tests/golden_runs.py` writes its numbers"
    assert entry is not None, f"{name} is new: {again}"
    assert entry["revision"] == revision(name), f"{name} has a new revision: {again}"
    assert equal(numbers(name), entry["numbers"]), (
        f"the numbers of {name} have moved: if they should, raise its `revision`, or "
        f"`benchmark.runs.code_identity.REVISION` where the framework moved them; {again}"
    )
