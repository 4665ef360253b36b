"""Options and fixtures shared by several test folders."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import torch

from machines import Machine

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by shells that run the tests in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored by nohup


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest tests/contract --method NAME`` runs the contract of NAME alone."""
    parser.addoption("--method", action="append", default=[], metavar="NAME", help="by name or dotted path")


def pytest_configure(config: pytest.Config) -> None:
    """Name the check of the contract that is running."""
    if config.getoption("method"):
        config.option.verbose = max(config.option.verbose, 1)


def pytest_unconfigure() -> None:
    """Unfreeze the objects frozen by ``few_objects``, which libraries would otherwise report as leaked."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of no method if methods are named; run long tests (those with their own timeout) first."""
    if config.getoption("method"):
        chosen, others = [], []
        for item in items:
            (chosen if getattr(item, "originalname", None) == "test_contract" else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = chosen

    def patience(item: pytest.Item) -> int:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark and mark.args[0] >= 300 else 0

    items.sort(key=patience, reverse=True)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors on shared cores: one thread is faster, and the same everywhere."""
    torch.set_num_threads(1)


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A made-up machine of two idle cores, in place of this one."""
    return Machine(tmp_path_factory.mktemp("machine"), monkeypatch)


@pytest.fixture(autouse=True)
def modules_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test has imported from its files: another test's may have the same names."""
    before, files = set(sys.modules), f"{tmp_path_factory.getbasetemp()}{os.sep}"
    yield
    for name in sys.modules.keys() - before:
        attributes = getattr(sys.modules[name], "__dict__", {})  # asking a lazy module for __file__ would load it
        if str(attributes.get("__file__")).startswith(files):
            del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Freeze long-lived objects such as imported modules, since every run ends with a garbage collection."""
    gc.collect()
    gc.freeze()
