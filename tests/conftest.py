"""Options and fixtures that several test folders use."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest tests/contract --method my_package.mine.Mine`` runs the contract on a method of your own."""
    parser.addoption("--method", action="append", default=[], help="methods for the contract tests (default: all)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every contract test meets every method."""
    if "method_name" in metafunc.fixturenames:
        from benchmark.registry import KINDS, known_names

        names = metafunc.config.getoption("--method") or known_names(KINDS["method"])
        metafunc.parametrize("method_name", names)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors on shared cores: one thread is faster, and the same everywhere."""
    torch.set_num_threads(1)
