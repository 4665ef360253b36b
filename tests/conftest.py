"""Options and fixtures that several test folders use."""

import signal
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans are kept with the tests' files, and not in the home of who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
