"""A GPU gets a queue for every slot."""

import os

import pytest

from benchmark.launch.queues import enough_queues

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"


def test_the_most_queues_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "1")
    enough_queues()
    assert os.environ[NAME] == "1"
    monkeypatch.delenv(NAME)
    enough_queues()
    assert os.environ[NAME] == "32"
