"""The options of this suite."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


class Collected:
    """Keeps the names of the tests that are left."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.name for item in session.items]


def test_a_named_method_meets_its_contract_and_no_other_test():
    """``pytest tests/contract --method NAME`` leaves out what does not depend on NAME."""
    files = [str(ROOT / "tests" / "contract" / name) for name in ("test_contract.py", "test_checks.py")]
    plain = ["--collect-only", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--rootdir", str(ROOT)]
    found = Collected()
    assert pytest.main([*files, "--method", "fedavg", *plain], [found]) == 0
    assert found.names
    assert all(name.startswith("test_contract[fedavg-") for name in found.names), found.names
