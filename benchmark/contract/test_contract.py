"""The contract as tests: every check meets every method that ``--fssl-method`` names, or all that are known."""

import pytest

from benchmark.contract.checks import Check, parametrize_with_checks
from benchmark.registry import KINDS, find_class, known_names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Methods come from the command line; a name that is none ends the collection."""
    if {"method", "check"} <= set(metafunc.fixturenames):
        methods = metafunc.config.getoption("fssl_method") or known_names(KINDS["method"])
        for name in methods:
            find_class(name, KINDS["method"])
        mark = parametrize_with_checks(*methods)
        metafunc.parametrize(*mark.args, **mark.kwargs)


def test_contract(method: str, check: Check) -> None:
    """A method keeps what it owes."""
    check(method)
