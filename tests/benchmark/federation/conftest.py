"""Checkpoints on disk."""

import pytest

from benchmark.federation import checkpoint
from checkpoints import STATES


@pytest.fixture
def path(tmp_path):
    """Where a checkpoint lies."""
    return tmp_path / "checkpoint.pt"


@pytest.fixture
def two(path):
    """Two checkpoints: 0 became the predecessor of 1."""
    for number in (0, 1):
        checkpoint.save(path, STATES[number])
    return path
