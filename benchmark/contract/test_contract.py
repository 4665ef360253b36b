"""The contract as tests: every check meets every method that ``--fssl-method`` names, or all that are known."""

from typing import TYPE_CHECKING

from benchmark.contract.checks import Check, parametrize_with_checks
from benchmark.registry import KINDS, find_class, known_names
from datamodules.common.errors import ConfigError

if TYPE_CHECKING:
    import pytest


def pytest_generate_tests(metafunc: "pytest.Metafunc") -> None:
    """Methods come from the command line."""
    if {"method", "check"} <= set(metafunc.fixturenames):
        import pytest

        named = metafunc.config.getoption("fssl_method")
        try:
            for name in named:
                find_class(name, KINDS["method"])
        except ConfigError as error:
            raise pytest.Collector.CollectError(f"--fssl-method: {error}") from error
        methods = named or known_names(KINDS["method"])
        mark = parametrize_with_checks(*methods)
        metafunc.parametrize(*mark.args, **mark.kwargs)


def test_contract(method: str, check: Check) -> None:
    """A method keeps what it owes."""
    check(method)
