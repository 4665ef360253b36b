"""What tests of whole runs share."""

import pytest

from benchmark.run import fit
from runs import MIXED, configuration


@pytest.fixture(autouse=True)
def ordinary_memory(monkeypatch):
    """The test process goes on after a run and wants its memory back."""
    monkeypatch.setenv("FSSL_KEEP_MEMORY", "0")


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """An uninterrupted run of a method with personal state, in one process."""
    return fit(configuration(tmp_path_factory.mktemp("reference"), **MIXED))
