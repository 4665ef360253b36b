"""Options and fixtures that several test folders use."""

import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in the background has it ignored

pytest_plugins = ["benchmark.contract.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest tests/contract --method NAME`` is short for ``--fssl-method``."""
    parser.addoption("--method", dest="fssl_method", action="append", default=[], help="short for --fssl-method")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors on shared cores: one thread is faster, and the same everywhere."""
    torch.set_num_threads(1)
